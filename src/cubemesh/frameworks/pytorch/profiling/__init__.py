"""The profiler: traces, and hooks on activations."""
