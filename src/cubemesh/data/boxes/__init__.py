"""Images with boxes of objects: training data of detection."""

from __future__ import annotations

from cubemesh.data.boxes.generated_boxes import GeneratedBoxes
from cubemesh.data.boxes.source import BoxedImages

__all__ = ["BoxedImages", "GeneratedBoxes"]
