"""Untrusted input: sanitized text for terminals and messages, JSON within limits, plain files.

What a file, a host, a rank or another program says may hold escape sequences, be nested a million
levels deep or have numbers of a million digits. `clean` makes text safe to print; `parse_json`
refuses what cannot be meant. A file that they name is opened by `open_plain_file`, which never
leaves the folder that it belongs to.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

MOST_CHARACTERS = 10_000
"""Most characters of a text that is printed."""
MOST_QUOTED = 80
"""Most characters of a value that a message quotes."""
MOST_DEPTH = 64
"""Most levels of lists and tables in each other."""
MOST_INTEGER = 1 << 64
MOST_FILE_BYTES = 2 << 30
"""Most bytes of a file that others name."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufffe\uffff]"
)
"""Control characters of ASCII (C0) and Latin-1 (C1) except tab and newline, marks that change the
direction of writing, surrogates and what XML forbids."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` without characters that a terminal obeys or an encoding lacks, cut to `most`."""
    if len(text) > most:
        text = f"{text[:most]} … ({len(text):,} characters)"
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", text)


def quoted(value: Any) -> str:
    """A value as a message quotes it: its `repr`, cut."""
    if isinstance(value, int) and abs(value) >= MOST_INTEGER:
        return "an integer beyond 64 bits"  # Python refuses to write one of 4,300 digits
    return clean(repr(value), MOST_QUOTED)


def shown_path(path: str | Path) -> str:
    """A path as a message quotes it, whole."""
    return f"'{clean(str(path))}'"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError with the reason where it is not JSON, is nested deeper
    than `MOST_DEPTH`, or has an integer beyond 64 bits or a text that is not Unicode."""
    try:
        value = json.loads(text)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from None
    _check(value, 0)
    return value


def open_plain_file(folder: Path, name: str) -> BinaryIO:
    """Open a plain file of a folder: never a path, link, device or FIFO. ValueError with the reason
    where it is refused, OSError where the folder itself cannot be opened or is a link."""
    if not _FILE_NAME.fullmatch(name):
        raise ValueError("not the name of a file in its folder")
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=inside)
    except OSError as error:
        raise ValueError(error.strerror) from None
    finally:
        os.close(inside)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        reason = "not a file of its own (a link, FIFO, folder or device)"
    elif found.st_size > MOST_FILE_BYTES:
        reason = f"larger than {MOST_FILE_BYTES >> 30} GiB"
    else:
        return os.fdopen(file, "rb")
    os.close(file)
    raise ValueError(reason)


def read_regular_file(path: Path) -> bytes:
    """The content of a file of any size. ValueError for a FIFO or a device, which would have no
    end, OSError if it cannot be read."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            raise ValueError("it has a text that is not Unicode (a lone surrogate)")
    elif isinstance(value, int):
        if abs(value) >= MOST_INTEGER:
            raise ValueError("it has an integer beyond 64 bits")
    elif isinstance(value, list | dict):
        if depth == MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
        if isinstance(value, dict):
            for key in value:
                _check(key, depth + 1)
            value = list(value.values())
        for item in value:
            _check(item, depth + 1)
