"""Responses: from the events of the engine to what clients read."""
