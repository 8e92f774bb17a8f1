"""Records of numbers and categories, such as clicks: training data of recommendation models."""

from __future__ import annotations

from cubemesh.data.records.generated_clicks import open_generated, open_synthetic, takes_records

__all__ = ["open_generated", "open_synthetic", "takes_records"]
