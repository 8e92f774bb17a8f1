"""How fast does this device multiply matrices, or copy memory, at best through JAX?

A product of two square matrices of side n is 2 n³ operations; a copy of b bytes reads b and writes
b. The result goes into an array that is donated for it, so no call asks for memory. Where the size
is not given it doubles until the rate grows by less than 5 %; the fastest size is kept. Copies
start at 256 MiB, beyond nearly all caches: it is memory that is asked about. Elements are random,
because a GPU multiplies zeros faster than anything real.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cubemesh.frameworks.base import CeilingProgram, monotonic_s
from cubemesh.frameworks.ceilings import COPY_SIZES, fastest
from cubemesh.frameworks.jax.runtime import NUMERICS, Numerics, is_out_of_memory, prepare
from cubemesh.model.spec import Ceiling, ProgramSettings


class _Compiled:
    """What both operations share: a compiled function of sources and of the array to write to."""

    def __init__(self, function: Callable[..., jax.Array], *sources: jax.Array) -> None:
        self._sources = sources
        self._call = jax.jit(
            lambda target, *sources: function(*sources), donate_argnums=0, keep_unused=True
        )
        self._target = jnp.zeros_like(sources[0])

    def call(self) -> None:
        """Queue the operation once."""
        self._target = self._call(self._target, *self._sources)

    def synchronize(self) -> None:
        """Wait for the last result."""
        self._target.block_until_ready()

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()


class MatrixProduct(_Compiled):
    """c = a b, all three `side` × `side`."""

    unit = "FLOP/s"

    def __init__(self, side: int, numerics: Numerics, device: jax.Device) -> None:
        random = np.random.default_rng(0)
        a, b = (
            jax.device_put(random.standard_normal((side, side), np.float32), device).astype(
                numerics.products
            )
            for _ in range(2)
        )
        self.work_per_call = 2.0 * side**3
        super().__init__(lambda a, b: jnp.matmul(a, b, precision=numerics.precision), a, b)


class Copy(_Compiled):
    """A copy from one array of `size_bytes` to another."""

    unit = "byte/s"

    def __init__(self, size_bytes: int, device: jax.Device) -> None:
        # Random once, then repeated: drawing 2 GiB would take half a minute.
        drawn = np.random.default_rng(0).bytes(min(size_bytes, 1 << 20))
        source = np.resize(np.frombuffer(drawn, np.uint8), size_bytes)
        self.work_per_call = 2.0 * size_bytes
        super().__init__(jnp.copy, jax.device_put(source, device))


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """The operation of `work` in the program's precision, at its size or at the fastest found."""
    place, numerics = prepare(device, threads), NUMERICS[program.precision]
    if work.operation == "copy":
        sizes = COPY_SIZES
        make: Callable[[int], CeilingProgram] = lambda size: Copy(size, place)  # noqa: E731
    else:
        sizes = (1 << 10, 1 << 14) if device != "cpu" else (1 << 9, 1 << 13)
        make = lambda side: MatrixProduct(side, numerics, place)  # noqa: E731
    if work.size is not None:
        return make(work.size)
    return fastest(make, *sizes, is_out_of_memory)
