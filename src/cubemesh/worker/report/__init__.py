"""What a worker reports: events, outcomes, limits, memory."""
