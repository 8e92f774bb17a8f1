"""Reports of a worker: events, outcomes, heartbeats, limits, memory, links."""
