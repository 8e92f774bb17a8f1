"""Triton kernels for GPUs and their autotuners."""
