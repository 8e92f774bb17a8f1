"""Preparing image sets: from folders and archives to tar shards with a manifest and checksums."""
