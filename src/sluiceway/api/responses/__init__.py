"""Events of the engine to responses, and responses to their readers."""
