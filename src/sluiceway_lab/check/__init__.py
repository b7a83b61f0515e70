"""Questions to any server that speaks the OpenAI protocol. Each gets a grade and a sentence with its number."""
