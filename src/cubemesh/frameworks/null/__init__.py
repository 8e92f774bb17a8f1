"""The null framework: scripted timings and outcomes, no computation."""
