"""The event-stream format, encoder and decoder, pure."""
