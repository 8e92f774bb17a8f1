"""Performance check: how fast a machine trains, what it loses, and what was gained by trying."""
