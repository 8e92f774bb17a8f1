"""WATCHED HOW: the timer around the steps, and what is sampled beside them."""
