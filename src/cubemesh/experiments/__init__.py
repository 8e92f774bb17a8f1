"""Experiments: one question each, answered from run records. `registry.py` lists them."""
