"""Wire protocols, pure: bytes to a `GenerationRequest`, and events back to bytes."""
