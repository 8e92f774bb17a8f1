"""ONNX Runtime, on a CPU or, with onnxruntime-gpu, on a GPU.

All graph optimizations are on, and the compute threads are those of the run. Threads spin while
they wait, as is its default.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.onnx_engines.program import OnnxProgram, Placed, build_ceiling
from cubemesh.onnx.export import import_onnx

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""Kind of device → its execution provider."""


def capabilities() -> Capabilities:
    """Inference in fp32 on the devices whose providers are installed."""
    installed = _library().get_available_providers()
    devices = [d for d in ("cuda:0", "cpu") if _PROVIDERS[d.split(":")[0]] in installed]
    return Capabilities(
        works=frozenset({"infer", "infer_load"}),
        devices=tuple(devices),
        precisions={device.split(":")[0]: frozenset({"fp32"}) for device in devices},
        layouts=frozenset({"nchw"}),
        optimizers=frozenset(),
        hint="A GPU needs the package onnxruntime-gpu.",
        lacking=frozenset({"cuda"} - {device.split(":")[0] for device in devices}),
    )


class OnnxRuntimeProgram(OnnxProgram):
    """A session of ONNX Runtime."""

    _session: Any

    def start(self, serialized: bytes, names: Sequence[str]) -> None:
        """See `OnnxProgram`."""
        library = _library()
        options = library.SessionOptions()
        options.intra_op_num_threads = self.request.threads
        options.log_severity_level = 3
        kind, _, number = self.device.partition(":")
        provider = (_PROVIDERS[kind], {"device_id": number} if number else {})
        self._session = library.InferenceSession(serialized, options, providers=[provider])
        self._names = list(names)

    def infer(self, placed: Placed) -> Any:
        """See `SupportsInference`."""
        return self._session.run(None, dict(zip(self._names, placed, strict=False)))[0]

    def fetch(self, scores: Any) -> Array:
        """See `SupportsInference`."""
        return np.asarray(scores)


def build(request: BuildRequest) -> OnnxRuntimeProgram:
    """The program for `request`."""
    return OnnxRuntimeProgram(request)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation."""
    return isinstance(error, MemoryError) or (
        type(error).__module__.startswith("onnxruntime") and "Failed to allocate" in str(error)
    )


def preload() -> None:
    """Import what makes the model. The engine itself starts threads when it is imported."""
    with contextlib.suppress(UsageError):  # `build` says what is missing
        import_onnx()


def _library() -> Any:
    return importlib.import_module("onnxruntime")
