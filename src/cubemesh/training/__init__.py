"""Training over epochs, for what a step time cannot tell: loss and accuracy."""
