"""Validation of forecasts against published figures."""
