"""Wire protocols, pure: bytes to a `Generation`, and events back to bytes."""
