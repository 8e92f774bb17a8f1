"""Running one job in one process."""
