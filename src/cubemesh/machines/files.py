"""File reading: the kernel's small text files under a root folder, and user files up to a limit.

`Tree` never raises: what is missing, unreadable or malformed is None, and `Tree.missing` records
what is unknown and why. Its root is "/" for this machine, or a folder with a copy of another
machine's files.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cubemesh.errors import DataError
from cubemesh.schema import Unknown


def read_text(path: Path, max_bytes: int, what: str) -> str:
    """The UTF-8 text of a user's file. DataError if it cannot be read, is no regular file, is
    larger than `max_bytes` and so not a `what` ("topology"), or is not text."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path} is not a regular file. Save the {what} to one.")
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # a null character in the path
        raise DataError(f"{str(path)!r} cannot be read: {error}.") from None
    if len(data) > max_bytes:
        raise DataError(f"{path} is larger than {max_bytes >> 20} MiB: not a {what}.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text: byte {error.start} is not UTF-8.") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


BLANKS = " \t\r\n"
"""White space that the kernel writes. `str.strip()` also removes control characters (0x1c to 0x1f)
and all spaces of Unicode, which are damage in such a file."""
MOST_FILE_BYTES = 16 << 20
MOST_TABLE_BYTES = 1 << 20
"""Size limit of a table of the kernel, which has some kilobytes."""


@dataclass
class Tree:
    """The files under `root`, and what could not be determined from them."""

    root: Path = Path("/")
    unknown: list[Unknown] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether this is the running machine rather than a copy of its files."""
        return self.root == Path("/")

    def missing(self, what: str, why: str) -> None:
        """Notes that `what` is unknown and `why`; duplicates are dropped."""
        note = Unknown(what=what, why=why)
        if note not in self.unknown:
            self.unknown.append(note)

    def raw(self, path: str) -> bytes | None:
        """The content of `path` (absolute, "/proc/meminfo"), of a large one the first
        `MOST_FILE_BYTES`; None where it cannot be read."""
        try:
            with open(f"{self.root}/{path}", "rb", opener=_without_waiting) as file:
                return file.read(MOST_FILE_BYTES)
        except (OSError, ValueError):  # ValueError: a path with a null character in it
            return None

    def text(self, path: str) -> str | None:
        """The content of `path` as text, stripped; None where it cannot be read."""
        content = self.raw(path)
        return None if content is None else content.decode(errors="replace").strip(f"\0{BLANKS}")

    def table(self, path: str, what: str) -> list[str] | None:
        """The lines of a table of the kernel such as /proc/mounts; None where it cannot be read. Of
        one larger than `MOST_TABLE_BYTES` the first part, with a note about `what`."""
        try:
            with open(f"{self.root}/{path}", "rb", opener=_without_waiting) as file:
                content = file.read(MOST_TABLE_BYTES + 1)
        except (OSError, ValueError):
            return None
        lines = content[:MOST_TABLE_BYTES].decode(errors="replace").split("\n")
        if len(content) > MOST_TABLE_BYTES:
            del lines[-1]
            self.missing(
                what, f"{path} is larger than {MOST_TABLE_BYTES >> 20} MiB; its end is left out"
            )
        return lines

    def target(self, path: str) -> str | None:
        """The path below the root that `path` leads to with all links followed; None where there is
        nothing, or where it is outside the root."""
        root = os.path.realpath(self.root)
        try:
            found = os.path.realpath(f"{root}/{path}", strict=True)
        except (OSError, ValueError):
            return None
        if root == "/":
            return found
        return found.removeprefix(root) if found.startswith(f"{root}/") else None

    def number(self, path: str) -> int | None:
        """The integer in `path`, or None."""
        return whole_number(self.text(path))

    def numbered(self, folder: str, prefix: str) -> list[int]:
        """The numbers N of the entries `<prefix>N` in `folder`, in rising order."""
        rests = (n.removeprefix(prefix) for n in self.names(folder) if n.startswith(prefix))
        return sorted(int(r) for r in rests if r.isascii() and r.isdigit())

    def names(self, folder: str) -> list[str]:
        """The sorted names of the entries of `folder`; none where it cannot be read."""
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether `path` exists."""
        return os.path.lexists(f"{self.root}/{path}")


def whole_number(text: str | None) -> int | None:
    """The integer in `text`, in ASCII digits with `BLANKS` around them, or None."""
    match = re.fullmatch(r"-?[0-9]{1,30}", (text or "").strip(BLANKS))
    return int(match[0]) if match else None


def cpu_list(text: str | None) -> tuple[int, ...] | None:
    """The processors of the kernel's list format: "0-3,8" is (0, 1, 2, 3, 8).

    None where there is no text or it is not such a list; an empty text is an empty list (a NUMA
    node that has memory but no processors). Sources: Documentation/admin-guide/cputopology.rst
    and kernel-parameters.rst (`<cpu-list>`) of the Linux kernel.
    """
    if text is None:
        return None
    numbers: set[int] = set()
    for part in filter(None, text.strip(BLANKS).split(",")):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match:
            return None
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


def size_bytes(text: str | None) -> int | None:
    """The bytes of a size as the kernel writes them: "32K", "36608K", "2M", "64 kB", "512"."""
    match = re.fullmatch(r"([0-9]{1,18})\s*([KMGkmg]?)[Bb]?", text or "")
    if not match:
        return None
    power = {"": 0, "k": 1, "m": 2, "g": 3}[match[2].lower()]
    return int(match[1]) << (10 * power)


def meminfo_bytes(tree: Tree, name: str) -> int | None:
    """An entry of /proc/meminfo in bytes, or None."""
    for line in (tree.text("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return size_bytes(value.strip())
    return None
