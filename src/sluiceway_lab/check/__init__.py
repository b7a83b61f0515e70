"""Questions to any server that speaks the OpenAI protocol, asked from outside, each with a grade and its number."""
