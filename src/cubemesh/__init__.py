"""cubemesh: how fast a machine trains neural networks, what it loses, how far it scales."""

__version__ = "0.1.0"
