"""Networks whose neighbouring layers run as fused operations."""
