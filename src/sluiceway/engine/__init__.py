"""The step loop and what it runs on."""
