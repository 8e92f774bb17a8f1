"""Keras's backend: the library that Keras computes with, one for each process."""

from __future__ import annotations

import importlib
import os
import sys

from cubemesh.errors import UsageError
from cubemesh.frameworks.environment import environment_variable

BACKEND_VARIABLE = "KERAS_BACKEND"
"""Environment variable that Keras, as it is imported, takes its backend from."""
_NO_BLAS_THREADS = "OPENBLAS_NUM_THREADS", "1"
"""SciPy, which Keras imports on JAX, then starts no threads of OpenBLAS: a process forks after it
has imported its framework, and no step uses them."""


def select_backend(name: str) -> None:
    """Import Keras with the backend `name`. UsageError where this process has Keras with another
    one, which it cannot change."""
    already = sys.modules.get("keras")
    if already is None:
        os.environ[BACKEND_VARIABLE] = name
        with environment_variable(*_NO_BLAS_THREADS):
            already = importlib.import_module("keras")
    used = already.backend.backend()
    if used != name:
        raise UsageError(
            f"Keras already runs on {used} in this process and cannot run on {name} any more. Use "
            "a separate process."
        )


def computes_float64(name: str) -> bool:
    """Whether `keep_float64` can make Keras compute in float64 on a backend."""
    return name == "tensorflow" or _narrowed() is not None


def keep_float64(wanted: bool) -> None:
    """Let results of float64 be of float64 from now on, or not. On JAX and PyTorch Keras's rules of
    promotion make them float32, whatever its policy (keras/src/backend/common/dtypes.py)."""
    narrowed = _narrowed()
    if narrowed is not None:
        narrowed["float64"] = "float64" if wanted else "float32"


def _narrowed() -> dict[str, str] | None:
    """Keras's table of 64-bit types and what its results are of instead; None where this version
    has none."""
    try:
        dtypes = importlib.import_module("keras.src.backend.common.dtypes")
    except ModuleNotFoundError:
        return None
    table: dict[str, str] | None = getattr(dtypes, "BIT64_TO_BIT32_DTYPE", None)
    return table
