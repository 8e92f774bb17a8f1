"""Telemetry: utilization, memory, clocks and I/O sampled during a run."""
