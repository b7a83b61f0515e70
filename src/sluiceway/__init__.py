"""Sluiceway: a streaming server for large language models. The version, and no imports."""

__version__ = "0.1.0"
