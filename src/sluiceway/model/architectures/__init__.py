"""One file for each architecture, and the registry of all of them."""
