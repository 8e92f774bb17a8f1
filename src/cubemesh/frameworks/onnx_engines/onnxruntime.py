"""ONNX Runtime, on a CPU or, with onnxruntime-gpu, on a GPU: onnx/engines/onnxruntime.py."""

from __future__ import annotations

import contextlib

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.onnx_engines.program import OnnxProgram, build_ceiling
from cubemesh.onnx.engines import onnxruntime
from cubemesh.onnx.library import import_onnx

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


def capabilities() -> Capabilities:
    """Inference in fp32 on the devices whose providers are installed."""
    devices = onnxruntime.devices()
    return Capabilities(
        works=frozenset({"infer", "infer_load"}),
        devices=devices,
        precisions={device.split(":")[0]: frozenset({"fp32"}) for device in devices},
        layouts=frozenset({"nchw"}),
        optimizers=frozenset(),
        hint="A GPU needs the package onnxruntime-gpu.",
        lacking=frozenset({"cuda"} - {device.split(":")[0] for device in devices}),
    )


def build(request: BuildRequest) -> OnnxProgram:
    """The program for `request`."""
    return OnnxProgram(request, onnxruntime.open_session)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation."""
    return isinstance(error, MemoryError) or (
        type(error).__module__.startswith("onnxruntime") and "Failed to allocate" in str(error)
    )


def preload() -> None:
    """Import what makes the model. The engine itself starts threads when it is imported."""
    with contextlib.suppress(UsageError):  # `build` says what is missing
        import_onnx()
