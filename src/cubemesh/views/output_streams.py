"""stdout and stderr that are closed, full, or whose reader is gone.

A run must not end because its progress has no reader: stderr loses what it cannot write.
stdout carries results, so that it is reported, once, that they could not be written.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

_failures: list[OSError] = []
"""What went wrong with stdout."""


class _Reported(io.FileIO):
    """A file descriptor that remembers its failures."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _failures.append(error)
            raise


class _Lossy(io.FileIO):
    """A file descriptor that loses what it cannot write."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def prepare() -> None:
    """Open stdout and stderr again, so that their failures are remembered or ignored."""
    for name, descriptor, kind in (("stdout", 1, _Reported), ("stderr", 2, _Lossy)):
        stream = getattr(sys, name)
        if stream is None:
            _open_null(descriptor)
            encoding, errors, lines = "utf-8", "strict", False
        elif _is_descriptor(stream, descriptor):
            encoding, errors = stream.encoding, stream.errors or "strict"
            lines = stream.line_buffering
        else:  # of a test or notebook
            continue
        raw = kind(descriptor, "w", closefd=False)
        buffer = io.BufferedWriter(raw)
        again = io.TextIOWrapper(buffer, encoding=encoding, errors=errors, line_buffering=lines)
        setattr(sys, name, again)


def failure() -> OSError | None:
    """Why stdout could not be written; None if it could. It is silent from then on."""
    with suppress(OSError):
        sys.stdout.flush()
    if not _failures:
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _failures[0]


def _is_descriptor(stream: Any, descriptor: int) -> bool:
    """Whether this is the stream that Python opened, and not one of a test or notebook."""
    try:
        return type(stream) is io.TextIOWrapper and bool(stream.fileno() == descriptor)
    except (OSError, ValueError):
        return False


def _open_null(descriptor: int) -> None:
    """Open the closed descriptor, so that no other file gets its number."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
