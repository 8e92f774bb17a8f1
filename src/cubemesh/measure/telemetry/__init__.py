"""Telemetry: utilization, memory, clocks and I/O sampled beside a run."""
