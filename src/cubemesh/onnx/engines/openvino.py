"""OpenVINO, on a CPU: one stream that uses all threads.

Its own default on a CPU with bf16 units is bf16; here the precision is stated.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cubemesh.batches import Array

TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""Precision → OpenVINO's name."""


class OpenVinoSession:
    """A compiled model and its request."""

    def __init__(
        self, content: bytes | Path, threads: int, precision: str, batch: int | None
    ) -> None:
        core = _library().Core()
        model = core.read_model(content)
        if batch is not None:
            shapes = {i.any_name: i.partial_shape for i in model.inputs}
            model.reshape(
                {
                    name: [batch if length.is_dynamic else length.get_length() for length in shape]
                    for name, shape in shapes.items()
                }
            )
        self._compiled = core.compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": TYPES[precision],
            },
        )
        self._request = self._compiled.create_infer_request()

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """See `Session`."""
        found = self._request.infer(inputs, share_inputs=True)
        return [found[output] for output in self._compiled.outputs]


def available() -> tuple[str, ...]:
    """The precisions for which the CPU has units."""
    able = _library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return tuple(p for p in TYPES if p.upper() in able)


def open_session(
    content: bytes | Path,
    *,
    threads: int,
    precision: str = "fp32",
    device: str = "cpu",
    batch: int | None = None,
) -> OpenVinoSession:
    """See `Engine`."""
    return OpenVinoSession(content, threads, precision, batch)


def _library() -> Any:
    return importlib.import_module("openvino")
