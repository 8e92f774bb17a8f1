"""Is there a C++ compiler here, where is kept what it makes, and how is a kernel compiled with it?

A kernel is compiled for this very CPU, so that a cache on a disk that several machines share holds
one for each kind: the file's name is a digest of the source, the headers beside it, the command,
the compiler's version and what the CPU can do.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

COMPILERS = ("g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
COMPILE_S = 120.0
"""How long a compiler may take, on a busy machine."""

_DAMAGED = re.compile(
    r"(/[^:\n]+\.so): (?:file too short|invalid ELF header|cannot read file data|"
    r"ELF file's phentsize|ELF load command|object file has no)"
)
"""What the loader says of a file that is no whole library (glibc, elf/dl-load.c), with its name."""


def compiler_setting() -> str:
    """What CXX names, else nothing."""
    return os.environ.get("CXX", "")


def cpp_compiler() -> str | None:
    """The path of CXX, or where that is not set of the first compiler that is there."""
    asked = compiler_setting()
    paths = (shutil.which(name) for name in ((asked,) if asked else COMPILERS))
    return next((path for path in paths if path is not None), None)


def missing_compiler() -> str:
    """What to install, in words; empty where there is a compiler."""
    if cpp_compiler() is not None:
        return ""
    asked = compiler_setting()
    what = f"CXX names '{asked}', which is not there" if asked else "there is none"
    return (
        f"To compile for the CPU it needs a C++ compiler, and {what}: install g++ or clang++ "
        "(apt install g++), or set CXX to one."
    )


def cache_folder() -> Path:
    """Where compiled code is kept: `$XDG_CACHE_HOME/cubemesh/compile`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "cubemesh" / "compile"


@cache
def compiled_library(source: Path, *more: str) -> ctypes.CDLL:
    """`source` as a library, compiled with `more` flags unless the cache has it whole.

    Raises OSError where there is no compiler or it refuses, with what it said.
    """
    compiler = cpp_compiler()
    if compiler is None:
        raise OSError(missing_compiler())
    version = _run(compiler, "--version").stdout
    headers = (header.read_text() for header in sorted(source.parent.glob("*.h")))
    parts = (source.read_text(), *headers, compiler, *FLAGS, *more, version, _cpu())
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    library = cache_folder() / f"{source.stem}-{name}.so"
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
    source: Path, arguments: Mapping[str, Sequence[Any]], *more: str
) -> ctypes.CDLL:
    """The same, its functions declared: name → types of the arguments; they return nothing."""
    found = compiled_library(source, *more)
    for name, types in arguments.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, None
    return found


def damaged_libraries(error: BaseException) -> list[Path]:
    """The files that `error` says are no whole libraries: cut short by a kill or a full disk."""
    return [Path(name) for name in _DAMAGED.findall(str(error))]


def _compile(compiler: str, source: Path, library: Path, more: Sequence[str]) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as own:  # another process may be at it, too
        made = Path(own) / library.name
        done = _run(compiler, *FLAGS, str(source), *more, "-o", str(made))
        if done.returncode != 0:
            raise OSError(f"{compiler} does not compile {source.name}: {done.stderr.strip()[:500]}")
        made.replace(library)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """What the compiler says; OSError where it takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} took more than {error.timeout:.0f} s") from None


def _cpu() -> str:
    """What the CPU is and can do, as the kernel tells it."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return "\n".join([platform.machine(), *sorted({x for x in lines if x.startswith(wanted)})])
