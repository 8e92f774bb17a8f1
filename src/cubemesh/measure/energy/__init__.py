"""Energy and power."""
