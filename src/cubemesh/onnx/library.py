"""The package onnx, imported on use."""

from __future__ import annotations

import importlib
from typing import Any

from cubemesh.errors import UsageError


def import_onnx() -> Any:
    """The package onnx; UsageError with the installation command where it is missing."""
    # Statements, not `importlib`: passes ask ten thousand times, and of what is imported a
    # statement is ten times as fast.
    try:
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
        import onnx.shape_inference
        import onnx.version_converter
    except ImportError as error:
        raise UsageError(
            "ONNX files need the package onnx: pip install 'cubemesh[onnx]'"
        ) from error
    return onnx


def import_reference() -> Any:
    """The class `ReferenceEvaluator` of the package onnx: the standard's own implementation."""
    import_onnx()
    return importlib.import_module("onnx.reference").ReferenceEvaluator
