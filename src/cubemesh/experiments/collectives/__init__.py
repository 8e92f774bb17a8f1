"""Bandwidth and latency of collectives."""
