"""Batch normalisation, residual add and ReLU in Triton."""
