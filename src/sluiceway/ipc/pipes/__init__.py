"""Typed one-way pipes over ZeroMQ."""
