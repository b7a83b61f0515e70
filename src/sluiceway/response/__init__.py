"""One response's mind: pure, without a clock or a socket."""
