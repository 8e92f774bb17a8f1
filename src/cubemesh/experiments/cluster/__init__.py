"""Clusters: fat trees, dragonflies, and their forecast throughput."""
