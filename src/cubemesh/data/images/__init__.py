"""Images: where they are stored, how they are read and decoded."""
