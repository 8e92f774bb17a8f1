"""Cost of the link between devices."""
