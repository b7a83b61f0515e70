"""Finds, fetches and checks models: names, sources, downloads, the cache."""
