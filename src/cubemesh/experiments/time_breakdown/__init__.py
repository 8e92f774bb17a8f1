"""Breakdown of the mean step time."""
