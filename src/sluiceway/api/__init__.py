"""The API process: HTTP on one side, the pipes to the tokenizer on the other."""
