"""Hand-written kernels and their autotuners."""
