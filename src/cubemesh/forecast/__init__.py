"""EXPECTED WHAT: how fast something should be, from what it costs and what a device can do."""
