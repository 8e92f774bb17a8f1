"""Learning rate against the number of devices."""
