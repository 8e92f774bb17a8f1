"""Input on a GPU: copies, JPEG decoding, crops."""
