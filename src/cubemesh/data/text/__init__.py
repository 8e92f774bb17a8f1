"""Text: token sequences and sentence pairs."""
