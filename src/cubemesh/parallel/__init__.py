"""Gradient synchronization strategies: how the devices that train one network come to the same
weights. The table is parallel/strategies.py."""
