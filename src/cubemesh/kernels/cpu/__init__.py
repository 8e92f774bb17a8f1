"""C++ kernels for CPUs, their compiler and autotuner."""
