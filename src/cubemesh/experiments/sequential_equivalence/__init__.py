"""Whether several devices compute what one device computes."""
