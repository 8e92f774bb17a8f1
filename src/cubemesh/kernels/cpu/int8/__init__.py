"""INT8 inference on a CPU: convolutions, products, pools and sums of unsigned bytes, in C++."""
