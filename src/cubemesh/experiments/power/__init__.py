"""Power against throughput, and the Pareto front."""
