"""C++ compiler: the one that compiles kernels for the CPU, CXX or the first found, and its version.

Kernels that are compiled otherwise, or not at all, have other speeds, so the version is part of
what identifies a run's software.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

COMPILERS = ("g++", "clang++")
NONE = "none"
"""The version where there is no compiler."""
QUERY_S = 30.0
"""Time limit of `--version`, on a busy machine."""


def compiler_setting() -> str:
    """The value of CXX; empty if unset."""
    return os.environ.get("CXX", "")


def cpp_compiler() -> str | None:
    """The path of CXX or, if that is unset, of the first compiler found; None without one."""
    chosen = compiler_setting()
    paths = (shutil.which(name) for name in ((chosen,) if chosen else COMPILERS))
    return next((path for path in paths if path is not None), None)


def compiler_version() -> str:
    """The first line of its `--version`, such as `g++ (Debian 12.2.0-14) 12.2.0`; its name where it
    prints none, `none` without a compiler."""
    compiler = cpp_compiler()
    if compiler is None:
        return NONE
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=QUERY_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return Path(compiler).name
    return (done.stdout.strip().splitlines() or [Path(compiler).name])[0]


def missing_compiler() -> str:
    """What to install; empty if there is a compiler."""
    if cpp_compiler() is not None:
        return ""
    chosen = compiler_setting()
    found = f"CXX='{chosen}' was not found" if chosen else "none was found"
    return (
        f"Compiling for the CPU needs a C++ compiler, and {found}: install g++ or clang++ "
        "(apt install g++), or set CXX to one."
    )
