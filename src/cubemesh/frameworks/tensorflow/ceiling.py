"""Ceilings in TensorFlow: the fastest matrix product and memory copy of a device.

A product of (m × k) and (k × n) is 2 m n k operations; a copy of b bytes reads b and writes b. The
result is a new array each time. `frameworks/ceiling_search.py` finds the fastest size and shape
where none is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from cubemesh.frameworks.ceiling_search import Shape, build_operation, check_operation, shape_words
from cubemesh.frameworks.contract.program import CeilingProgram, monotonic_s
from cubemesh.frameworks.tensorflow.runtime import (
    NUMERICS,
    is_out_of_memory,
    prepare,
    synchronize,
    use_precision,
)
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling
from cubemesh.units import format_bytes


class _Graph:
    """One operation as a graph."""

    def __init__(self, device: str, function: Callable[..., Any], *sources: Any) -> None:
        self._device, self._sources = device, sources
        self._call = tf.function(function, autograph=False).get_concrete_function(*sources)
        self._result: Any = None

    def call(self) -> None:
        """Do the operation once, after freeing the last result."""
        self._result = None
        self._result = self._call(*self._sources)

    def synchronize(self) -> None:
        """Wait for the last result; on a CPU a call returns when it is done."""
        synchronize(self._device)

    clock = staticmethod(monotonic_s)


class TensorFlowMatrixProduct(_Graph):
    """c = a b, with a (m, k) and b (k, n)."""

    unit = "FLOP/s"

    def __init__(self, shape: Shape, dtype: Any, device: str) -> None:
        m, n, k = shape
        self.work_per_call = 2.0 * m * n * k
        self.what = f"{shape_words(shape)} (m × n × k)"
        random = np.random.default_rng(0)
        a, b = (
            tf.cast(tf.constant(random.standard_normal(sides, np.float32)), dtype)
            for sides in ((m, k), (k, n))
        )
        super().__init__(device, tf.matmul, a, b)


class TensorFlowCopy(_Graph):
    """A copy from one array of `size_bytes` to another. A GPU copies whole int64 numbers, as
    TensorFlow has no such operation for bytes there."""

    unit = "byte/s"

    def __init__(self, size_bytes: int, device: str) -> None:
        element = np.dtype(np.uint8 if device == "cpu" else np.int64)
        size_bytes = max(element.itemsize, size_bytes - size_bytes % element.itemsize)
        self.work_per_call = 2.0 * size_bytes
        self.what = f"{format_bytes(size_bytes)}, read plus written"
        # Random once, then repeated: drawing 2 GiB would take half a minute.
        drawn = np.random.default_rng(0).bytes(min(size_bytes, 1 << 20))
        array = np.resize(np.frombuffer(drawn, np.uint8), size_bytes).view(element)
        source = tf.constant(array)
        super().__init__(device, lambda x: tf.raw_ops.DeepCopy(x=x), source)


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """The operation of `work` in the program's precision, at its size or at the fastest found."""
    check_operation(work, {"matrix_product", "copy"}, "tensorflow")
    prepare(device, threads)
    use_precision(program.precision)
    dtype = NUMERICS[program.precision].products
    return build_operation(
        work,
        lambda shape: TensorFlowMatrixProduct(shape, dtype, device),
        lambda size: TensorFlowCopy(size, device),
        (1 << 9, 1 << 13) if device == "cpu" else (1 << 10, 1 << 14),
        is_out_of_memory,
    )
