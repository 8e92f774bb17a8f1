"""ONNX Runtime, on a CPU or, with onnxruntime-gpu, on a GPU. All graph optimizations are on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cubemesh.batches import Array
from cubemesh.onnx.graph import BATCH

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""Kind of device → its execution provider."""


class OnnxRuntimeSession:
    """An `InferenceSession`. Threads spin while they wait, as is its default."""

    def __init__(self, content: bytes | Path, threads: int, device: str, batch: int | None) -> None:
        library = _library()
        options = library.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if batch is not None:
            options.add_free_dimension_override_by_name(BATCH, batch)
        kind, _, number = device.partition(":")
        provider = (PROVIDERS[kind], {"device_id": number} if number else {})
        self._session = library.InferenceSession(content, options, providers=[provider])

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """See `Session`."""
        found: Sequence[Array] = self._session.run(None, inputs)
        return found


def available() -> tuple[str, ...]:
    """fp32, and 8-bit integers where the model says so."""
    return ("fp32",)


def devices() -> tuple[str, ...]:
    """The devices whose providers are installed."""
    installed = _library().get_available_providers()
    return tuple(d for d in ("cuda:0", "cpu") if PROVIDERS[d.split(":")[0]] in installed)


def open_session(
    content: bytes | Path,
    *,
    threads: int,
    precision: str = "fp32",
    device: str = "cpu",
    batch: int | None = None,
) -> OnnxRuntimeSession:
    """See `Engine`."""
    return OnnxRuntimeSession(content, threads, device, batch)


def _library() -> Any:
    return importlib.import_module("onnxruntime")
