"""Training over epochs: loss, accuracy and checkpoints."""
