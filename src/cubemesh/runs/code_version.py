"""Code version: cubemesh's version and a digest of the sources that affect a measurement.

A stored run is reused only where the same code would measure it again. Sources that store, plan or
display cannot change a figure and are left out, so that a better report does not invalidate
measurements.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import cubemesh

MEASURING = (
    "statistics",
    "schema",
    "batches.py",
    "cgroups.py",
    "cpp_compiler.py",
    "user_code.py",
    "networks",
    "data",
    "kernels",
    "frameworks",
    "measure",
    "parallel",
    "training",
    "worker",
)
"""Files and folders of the package whose content affects a measurement."""


@functools.cache
def code_version(package: Path = Path(cubemesh.__file__).parent) -> str:
    """`VERSION+DIGEST`, with twelve hexadecimal digits of SHA-256 over the paths and contents of
    every file in `MEASURING`."""
    total = hashlib.sha256()
    for name in MEASURING:
        for path in _files(package / name):
            content = path.read_bytes()
            total.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
            total.update(content)
    return f"{cubemesh.__version__}+{total.hexdigest()[:12]}"


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
