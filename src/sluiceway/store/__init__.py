"""Models on this machine: names, sources, downloads, the cache."""
