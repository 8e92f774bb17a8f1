"""Remote files: folders behind a URL, read by HTTP or by fsspec (object storage)."""
