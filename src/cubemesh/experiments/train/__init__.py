"""Training to a number of epochs or a target accuracy."""
