"""The contract of a framework."""
