"""Launching ranks on this host and on others."""
