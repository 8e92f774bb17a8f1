"""The null framework: simulated timings and outcomes, no computation."""
