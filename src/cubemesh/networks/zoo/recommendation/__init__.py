"""Recommendation models: records of numbers and categories → whether a user clicks."""
