"""INT8 network in C++ (`network.cpp`): its description, and how it is made and run.

A result is round(sum · multiplier) + zero in 0 … 255, with exact 32-bit sums: the same on every
processor and with all instructions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.cpp_compiler import missing_compiler
from cubemesh.kernels.cpu.compiler import declared_library

SOURCE = Path(__file__).with_name("network.cpp")
VERSION = "1"
"""Of what the kernels compute and how fast: another one makes plans measure again."""
INSTRUCTIONS = {"amx": 2, "vnni": 1, "emulated-amx": 4}
"""Name → bit of `int8_instructions`; the fastest first. The last one is for tests alone."""


class Kind(IntEnum):
    """Kinds of steps, as in `arrays.h`."""

    IMAGE = 0
    CONV = 1
    MAX_POOL = 2
    AVERAGE_POOL = 3
    SUM = 4
    NORM = 5


_L, _P = ctypes.c_int64, ctypes.c_void_p
_ARRAY = (
    *("height", "width", "channels", "pitch", "start", "image_bytes", "whole", "output"),
    *("floats", "zero"),
)
_STEP = (
    *("kind", "x", "y", "other", "kernel_h", "kernel_w", "stride_h", "stride_w", "top", "left"),
    *("dilation_h", "dilation_w", "row_bytes", "low", "fold", "size"),
)
_FACTORS = ("factor", "other_factor", "offset")
_POINTERS = ("weights", "multipliers", "biases")
_TYPES = {"weights": np.int8, "multipliers": np.float32, "biases": np.int32}
_DEFAULTS = {"x": -1, "other": -1, "fold": 1}


class _ArrayInfo(ctypes.Structure):
    _fields_ = [(name, _L) for name in _ARRAY]


class _StepInfo(ctypes.Structure):
    _fields_ = [
        *((name, _L) for name in _STEP),
        *((name, ctypes.c_double) for name in _FACTORS),
        *((name, _P) for name in _POINTERS),
    ]


class _SegmentInfo(ctypes.Structure):
    _fields_ = [(name, _L) for name in ("first", "last", "group")]


_N = ctypes.c_long
_ARGUMENTS: dict[str, Sequence[Any]] = {
    "int8_instructions": [],
    "int8_create": [_P, _N, _P, _N, _P, _N, _N, _N, _N, _P, _P],
    "int8_run": [_P, _P],
    "int8_destroy": [_P],
}


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled for this CPU. OSError where that is impossible."""
    return declared_library(
        SOURCE, _ARGUMENTS, int8_instructions=ctypes.c_long, int8_create=ctypes.c_void_p
    )


def unsupported(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Why this machine cannot run the kernels, as the end of a sentence; '' where it can."""
    try:
        flags = cpuinfo.read_text("utf-8")
    except OSError:
        flags = ""
    if "avx512_vnni" not in flags.split():
        return "the processor has no AVX512-VNNI"
    if missing_compiler():
        return missing_compiler()
    return ""


def choose(instructions: str = "") -> str:
    """The instructions that are used, by default the fastest here. ValueError without them."""
    reason = unsupported()
    if reason:
        raise ValueError(reason)
    found = library().int8_instructions()
    fitting = [n for n, bit in INSTRUCTIONS.items() if found & bit and n == (instructions or n)]
    if not fitting:
        raise ValueError(f"the processor has no {instructions or 'AVX512-VNNI'}")
    return fitting[0]


class Network:
    """A network in memory: weights packed, threads started."""

    def __init__(
        self,
        *,
        arrays: Sequence[Mapping[str, int]],
        steps: Sequence[Mapping[str, Any]],
        segments: Sequence[tuple[int, int, int]],
        batch: int,
        threads: int,
        tiles: bool,
        shape: tuple[int, int, int],
        arena_bytes: int,
        outputs: Sequence[NDArray[np.float32]],
    ) -> None:
        """Descriptions as in `arrays.h`; those of steps have arrays for pointers. MemoryError
        without memory."""
        keep: list[object] = []
        infos = (_ArrayInfo * len(arrays))(*(_ArrayInfo(**a) for a in arrays))
        made = (_StepInfo * len(steps))(*(_step(step, keep) for step in steps))
        parts = (_SegmentInfo * len(segments))(*(_SegmentInfo(*s) for s in segments))
        line_bytes = 16 * max(a["width"] for a in arrays) + shape[2] + 64
        sizes = (_L * 6)(*shape, arena_bytes, line_bytes, len(outputs))
        results = (_P * len(outputs))(*(array.ctypes.data for array in outputs))
        self._outputs = outputs
        self._network = library().int8_create(
            infos, len(arrays), made, len(steps), parts, len(segments), batch, threads, tiles,
            sizes, results,
        )  # fmt: skip
        if not self._network:
            raise MemoryError("there is no memory for the network")

    def run(self, images: NDArray[np.float32]) -> None:
        """Compute the outputs of a batch of contiguous images."""
        library().int8_run(self._network, images.ctypes.data)

    def close(self) -> None:
        """Free it and end its threads."""
        network, self._network = self._network, None
        if network:
            library().int8_destroy(network)


def _step(step: Mapping[str, Any], keep: list[object]) -> _StepInfo:
    values: dict[str, Any] = {**_DEFAULTS, **step}
    for name, dtype in _TYPES.items():
        if name in values:
            array = np.ascontiguousarray(values[name], dtype)
            keep.append(array)
            values[name] = array.ctypes.data
    return _StepInfo(**values)
