"""Throughput of a translator by width and attention."""
