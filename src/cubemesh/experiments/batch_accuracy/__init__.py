"""Accuracy by batch size and learning rate."""
