"""Decides what the engine computes in each step; pure, without a clock, a tensor or a socket."""
