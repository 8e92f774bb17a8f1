"""JAX: each step is one compiled function."""

from __future__ import annotations

from cubemesh.frameworks.jax.ceiling import build_ceiling
from cubemesh.frameworks.jax.program import build
from cubemesh.frameworks.jax.runtime import capabilities, is_out_of_memory, preload

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]
