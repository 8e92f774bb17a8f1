"""C++ compiler for CPU kernels, and its cache of shared libraries.

Kernels are compiled with -march=native. The file name in the cache is a digest of the source, the
headers in its folder, the command, the compiler's version and the CPU's features, so that machines
may share the cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cubemesh.cpp_compiler import cpp_compiler, missing_compiler
from cubemesh.user_folders import cache_folder

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
COMPILE_S = 120.0
"""Timeout of a compilation, on a busy machine."""

_DAMAGED = re.compile(
    r"(/[^:\n]+\.so): (?:file too short|invalid ELF header|cannot read file data|"
    r"ELF file's phentsize|ELF load command|object file has no)"
)
"""The loader's messages about a truncated library (glibc, elf/dl-load.c), with its name."""


def compile_folder() -> Path:
    """The cache of compiled code: `$XDG_CACHE_HOME/cubemesh/compile`."""
    return cache_folder() / "compile"


@cache
def compiled_library(source: Path, *more: str) -> ctypes.CDLL:
    """`source` as a library, compiled with `more` flags unless it is in the cache.

    OSError without a compiler, or with its message if it fails.
    """
    compiler = cpp_compiler()
    if compiler is None:
        raise OSError(missing_compiler())
    version = _run(compiler, "--version").stdout
    headers = (header.read_text("utf-8") for header in sorted(source.parent.glob("*.h")))
    parts = (source.read_text("utf-8"), *headers, compiler, *FLAGS, *more, version, _cpu())
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    library = compile_folder() / f"{source.stem}-{name}.so"
    if not library.is_file():
        _compile(compiler, source, library, more)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        if library not in damaged_libraries(error):
            raise
    _compile(compiler, source, library, more)
    return ctypes.CDLL(str(library))


def declared_library(
    source: Path, arguments: Mapping[str, Sequence[Any]], *more: str, **results: type
) -> ctypes.CDLL:
    """The same, with its functions declared: name → argument types; those in `results` return a
    value of that type, the others nothing."""
    found = compiled_library(source, *more)
    for name, types in arguments.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, results.get(name)
    return found


def damaged_libraries(error: BaseException) -> list[Path]:
    """The truncated libraries that `error` names, e.g. after a kill or with a full disk."""
    return [Path(name) for name in _DAMAGED.findall(str(error))]


def _compile(compiler: str, source: Path, library: Path, more: Sequence[str]) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as own:  # another process may compile the same
        made = Path(own) / library.name
        done = _run(compiler, *FLAGS, str(source), *more, "-o", str(made))
        if done.returncode != 0:
            raise OSError(
                f"{compiler} failed to compile {source.name}: {done.stderr.strip()[:500]}"
            )
        made.replace(library)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """The compiler's output; OSError on a timeout."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} took more than {error.timeout:.0f} s") from None


def _cpu() -> str:
    """The CPU's model and features, from /proc/cpuinfo."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return "\n".join([platform.machine(), *sorted({x for x in lines if x.startswith(wanted)})])
