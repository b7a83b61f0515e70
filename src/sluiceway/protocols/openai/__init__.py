"""The OpenAI protocol: chat completions, completions, models."""
