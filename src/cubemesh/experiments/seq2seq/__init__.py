"""Throughput of a translator by hidden size and attention."""
