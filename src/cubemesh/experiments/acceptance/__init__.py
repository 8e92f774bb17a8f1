"""Acceptance of a machine: its figures judged, with a verdict of pass or fail."""
