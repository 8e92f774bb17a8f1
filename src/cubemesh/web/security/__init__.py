"""What every request must pass before a page sees it, and the headers of every answer."""
