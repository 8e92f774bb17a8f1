"""Forecast of speed, from the cost of the work and the capability of the devices."""
