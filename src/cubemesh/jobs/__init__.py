"""Jobs: questions in a queue of the store, and the agents that run them."""
