"""Throughput, latency and memory against the batch size."""
