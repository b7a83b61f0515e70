"""The engine's mind: pure, without a clock, a tensor or a socket."""
