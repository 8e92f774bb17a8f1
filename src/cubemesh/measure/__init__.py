"""Measurement: timing, attribution, telemetry and energy of steps."""
