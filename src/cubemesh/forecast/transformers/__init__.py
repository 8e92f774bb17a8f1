"""Forecasts of transformers trained on many devices, by layout of parallelism."""
