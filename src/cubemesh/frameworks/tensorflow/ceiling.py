"""How fast does this CPU multiply matrices, or copy memory, at best through TensorFlow?

A product of two square matrices of side n is 2 n³ operations; a copy of b bytes reads b and writes
b. A result is a new array each time, as TensorFlow has it. `frameworks/ceilings.py` looks for the
fastest size where none is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from cubemesh.frameworks.base import CeilingProgram, monotonic_s
from cubemesh.frameworks.ceilings import COPY_SIZES, fastest
from cubemesh.frameworks.tensorflow.runtime import NUMERICS, is_out_of_memory, prepare
from cubemesh.model.spec import Ceiling, ProgramSettings


class _Graph:
    """What both operations share: one operation as a graph."""

    def __init__(self, function: Callable[..., Any], *sources: Any) -> None:
        self._sources = sources
        self._call = tf.function(function, autograph=False).get_concrete_function(*sources)
        self._result: Any = None

    def call(self) -> None:
        """Do the operation once; the last result is given back first."""
        self._result = None
        self._result = self._call(*self._sources)

    def synchronize(self) -> None:
        """Nothing: on a CPU a call returns when it is done."""

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()


class MatrixProduct(_Graph):
    """c = a b, all three `side` × `side`."""

    unit = "FLOP/s"

    def __init__(self, side: int, dtype: Any) -> None:
        self.work_per_call = 2.0 * side**3
        random = np.random.default_rng(0)
        a, b = (
            tf.cast(tf.constant(random.standard_normal((side, side), np.float32)), dtype)
            for _ in range(2)
        )
        super().__init__(tf.matmul, a, b)


class Copy(_Graph):
    """A copy from one array of `size_bytes` to another."""

    unit = "byte/s"

    def __init__(self, size_bytes: int) -> None:
        self.work_per_call = 2.0 * size_bytes
        # Random once, then repeated: drawing 2 GiB would take half a minute.
        drawn = np.random.default_rng(0).bytes(min(size_bytes, 1 << 20))
        source = tf.constant(np.resize(np.frombuffer(drawn, np.uint8), size_bytes))
        super().__init__(lambda x: tf.raw_ops.DeepCopy(x=x), source)


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """The operation of `work` in the program's precision, at its size or at the fastest found."""
    prepare(threads)
    dtype = NUMERICS[program.precision].products
    if work.operation == "copy":
        sizes = COPY_SIZES
        make: Callable[[int], CeilingProgram] = Copy
    else:
        sizes = (1 << 9, 1 << 13)
        make = lambda side: MatrixProduct(side, dtype)  # noqa: E731
    if work.size is not None:
        return make(work.size)
    return fastest(make, *sizes, is_out_of_memory)
