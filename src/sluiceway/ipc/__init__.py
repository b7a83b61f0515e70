"""What goes between processes: pure messages, and the pipes that carry them."""
