"""Ceilings in JAX: the fastest matrix product and memory copy of a device.

A product of (m × k) and (k × n) is 2 m n k operations; a copy of b bytes reads b and writes b. The
result is written into a donated array, so no call allocates memory.
`frameworks/ceiling_search.py` finds the fastest size and shape where none is given. Elements are
normally distributed, because a GPU at its power limit multiplies zeros faster than real data.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cubemesh.frameworks.ceiling_search import Shape, build_operation, check_operation, shape_words
from cubemesh.frameworks.contract.program import CeilingProgram, monotonic_s
from cubemesh.frameworks.jax.runtime import NUMERICS, JaxNumerics, is_out_of_memory, prepare
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling
from cubemesh.units import format_bytes


class _Compiled:
    """A compiled function of source arrays and of the array to write to."""

    def __init__(
        self, target: jax.Array, function: Callable[..., jax.Array], *sources: jax.Array
    ) -> None:
        self._sources = sources
        self._call = jax.jit(
            lambda target, *sources: function(*sources), donate_argnums=0, keep_unused=True
        )
        self._target = target

    def call(self) -> None:
        """Queue the operation once."""
        self._target = self._call(self._target, *self._sources)

    def synchronize(self) -> None:
        """Wait for the last result."""
        self._target.block_until_ready()

    clock = staticmethod(monotonic_s)


class JaxMatrixProduct(_Compiled):
    """c = a b, with a (m, k) and b (k, n)."""

    unit = "FLOP/s"

    def __init__(self, shape: Shape, numerics: JaxNumerics, device: jax.Device) -> None:
        random = np.random.default_rng(0)
        m, n, k = shape
        a, b = (
            jax.device_put(random.standard_normal(sides, np.float32), device).astype(
                numerics.products
            )
            for sides in ((m, k), (k, n))
        )
        self.work_per_call = 2.0 * m * n * k
        self.what = f"{shape_words(shape)} (m × n × k)"
        target = jnp.zeros((m, n), numerics.products, device=device)
        super().__init__(target, lambda a, b: jnp.matmul(a, b, precision=numerics.precision), a, b)


class JaxCopy(_Compiled):
    """A copy from one array of `size_bytes` to another."""

    unit = "byte/s"

    def __init__(self, size_bytes: int, device: jax.Device) -> None:
        # Random once, then repeated: drawing 2 GiB would take half a minute.
        drawn = np.random.default_rng(0).bytes(min(size_bytes, 1 << 20))
        source = np.resize(np.frombuffer(drawn, np.uint8), size_bytes)
        self.work_per_call = 2.0 * size_bytes
        self.what = f"{format_bytes(size_bytes)}, read plus written"
        placed = jax.device_put(source, device)
        super().__init__(jnp.zeros_like(placed), jnp.copy, placed)


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """The operation of `work` in the program's precision, at its size or at the fastest found."""
    check_operation(work, {"matrix_product", "copy"}, "jax")
    (place,), numerics = prepare(device, threads), NUMERICS[program.precision]
    return build_operation(
        work,
        lambda shape: JaxMatrixProduct(shape, numerics, place),
        lambda size: JaxCopy(size, place),
        (1 << 9, 1 << 13) if device == "cpu" else (1 << 10, 1 << 14),
        is_out_of_memory,
    )
