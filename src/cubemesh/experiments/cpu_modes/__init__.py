"""Threads, pinning and memory layout of a CPU."""
