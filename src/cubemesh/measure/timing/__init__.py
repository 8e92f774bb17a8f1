"""Timers, stopping rules and interleaved comparisons."""
