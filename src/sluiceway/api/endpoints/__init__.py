"""The endpoints: one ASGI application for each path, or for a few."""
