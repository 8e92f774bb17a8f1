"""OpenVINO, on a CPU: one stream that uses all compute threads of the run
(onnx/engines/openvino.py)."""

from __future__ import annotations

import contextlib
from typing import get_args

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.onnx_engines.program import OnnxProgram, build_ceiling
from cubemesh.onnx.engines import openvino
from cubemesh.onnx.library import import_onnx
from cubemesh.schema.spec import Precision

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


def capabilities() -> Capabilities:
    """Inference on the CPU in the precisions for which it has units."""
    able = openvino.available()
    return Capabilities(
        works=frozenset({"infer", "infer_load"}),
        devices=("cpu",),
        precisions={"cpu": frozenset(p for p in get_args(Precision) if p in able)},
        layouts=frozenset({"nchw"}),
        optimizers=frozenset(),
    )


def build(request: BuildRequest) -> OnnxProgram:
    """The program for `request`."""
    return OnnxProgram(request, openvino.open_session)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation."""
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


def preload() -> None:
    """Import what makes the model. The engine itself starts threads when it is imported."""
    with contextlib.suppress(UsageError):  # `build` says what is missing
        import_onnx()
