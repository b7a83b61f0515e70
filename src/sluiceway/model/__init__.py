"""The model: reading its files, computing forward passes, and sampling."""
