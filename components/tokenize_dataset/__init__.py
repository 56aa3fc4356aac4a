"""The tokenize_dataset step."""
