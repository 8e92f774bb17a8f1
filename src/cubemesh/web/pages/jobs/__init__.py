"""Pages of the queue: the forms that fill it, its jobs, and each of them."""
