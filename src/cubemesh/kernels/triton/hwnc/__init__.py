"""Kernels of inference on arrays in the layout HWNC: see kernels.py."""
