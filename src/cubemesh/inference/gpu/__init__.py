"""Plans on a GPU: networks of convolutions as programs of own kernels, in one CUDA graph."""
