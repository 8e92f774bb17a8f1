"""Batch normalization, residual add and ReLU in Triton."""
