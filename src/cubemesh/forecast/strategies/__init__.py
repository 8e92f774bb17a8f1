"""Forecasts of strategies that are more than collectives of gradients and weights."""
