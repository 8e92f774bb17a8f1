"""Plans on a CPU in own kernels: networks of convolutions in 8-bit integers."""
