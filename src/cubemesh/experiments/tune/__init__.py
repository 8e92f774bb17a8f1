"""Search for the fastest settings, and their later use."""
