"""Modules of the user: import, description, and the graph that they are traced to."""
