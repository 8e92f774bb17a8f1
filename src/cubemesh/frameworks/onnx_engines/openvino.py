"""OpenVINO, on a CPU: one stream that uses all compute threads of the run.

`precision` is its inference precision; OpenVINO's own default on a CPU with bf16 units is bf16.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.onnx_engines.program import OnnxProgram, Placed, build_ceiling
from cubemesh.onnx.export import import_onnx

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]

_TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""Precision → OpenVINO's name."""


def capabilities() -> Capabilities:
    """Inference on the CPU in the precisions for which it has units."""
    able = _library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precisions = {p for p in _TYPES if p.upper() in able}
    return Capabilities(
        works=frozenset({"infer", "infer_load"}),
        devices=("cpu",),
        precisions={"cpu": frozenset(precisions)},
        layouts=frozenset({"nchw"}),
        optimizers=frozenset(),
    )


class OpenVinoProgram(OnnxProgram):
    """A compiled model of OpenVINO."""

    _compiled: Any

    def start(self, serialized: bytes, names: Sequence[str]) -> None:
        """See `OnnxProgram`."""
        core = _library().Core()
        self._compiled = core.compile_model(
            core.read_model(serialized),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": self.request.threads,
                "INFERENCE_PRECISION_HINT": _TYPES[self.request.program.precision],
            },
        )
        self._request = self._compiled.create_infer_request()
        self._names = list(names)

    def infer(self, placed: Placed) -> Any:
        """See `SupportsInference`."""
        arrays = dict(zip(self._names, placed, strict=False))
        return self._request.infer(arrays, share_inputs=True)[0]

    def fetch(self, scores: Any) -> Array:
        """See `SupportsInference`."""
        array: Array = scores.copy()
        return array


def build(request: BuildRequest) -> OpenVinoProgram:
    """The program for `request`."""
    return OpenVinoProgram(request)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation."""
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


def preload() -> None:
    """Import what makes the model. The engine itself starts threads when it is imported."""
    with contextlib.suppress(UsageError):  # `build` says what is missing
        import_onnx()


def _library() -> Any:
    return importlib.import_module("openvino")
