"""What an experiment is, its settings, and the checks before a run."""
