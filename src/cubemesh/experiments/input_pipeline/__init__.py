"""Throughput of the input pipeline, stage by stage."""
