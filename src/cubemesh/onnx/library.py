"""The package onnx, imported on use."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from cubemesh.errors import UsageError

_imported: list[Any] = []
"""The package, once it and its parts have been imported."""


def import_onnx() -> Any:
    """The package onnx; UsageError with the installation command where it is missing."""
    # Passes ask a hundred thousand times, and `import_module` looks up each part every time.
    if _imported and sys.modules.get("onnx") is _imported[0]:
        return _imported[0]
    try:
        onnx = importlib.import_module("onnx")
        for name in ("checker", "helper", "numpy_helper", "shape_inference", "version_converter"):
            importlib.import_module(f"onnx.{name}")
    except ImportError as error:
        raise UsageError(
            "ONNX files need the package onnx: pip install 'cubemesh[onnx]'"
        ) from error
    _imported[:] = [onnx]
    return onnx


def import_reference() -> Any:
    """The class `ReferenceEvaluator` of the package onnx: the standard's own implementation."""
    import_onnx()
    return importlib.import_module("onnx.reference").ReferenceEvaluator
