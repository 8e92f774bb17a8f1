"""TensorFlow's program compiled by XLA: the same step as `tensorflow`, with `jit_compile=True`.

XLA has every operation in both layouts. Ceilings are TensorFlow's, not compiled.
"""

from __future__ import annotations

import dataclasses

from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.tensorflow import runtime
from cubemesh.frameworks.tensorflow.ceiling import build_ceiling
from cubemesh.frameworks.tensorflow.program import TensorFlowProgram
from cubemesh.frameworks.tensorflow.runtime import is_out_of_memory, preload

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


def capabilities() -> Capabilities:
    """What TensorFlow can do here when XLA compiles it."""
    return dataclasses.replace(
        runtime.capabilities(),
        layouts=frozenset({"nchw", "nhwc"}),
        sync_features=frozenset(),  # XLA cannot compile the ring all-reduce over gRPC
    )


class XlaProgram(TensorFlowProgram):
    """A network whose step is compiled as a whole; see `TensorFlowProgram`."""

    compiles = True


def build(request: BuildRequest) -> XlaProgram:
    """The program for `request`."""
    return XlaProgram(request)
