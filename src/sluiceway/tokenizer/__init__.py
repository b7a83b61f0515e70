"""The tokenizer process, and the text it works on."""
