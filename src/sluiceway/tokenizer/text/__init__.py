"""Tokenizers, chat templates, decoding and stop strings."""
