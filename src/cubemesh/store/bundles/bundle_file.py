"""The file of a share bundle: a page, and the parts of a store in a data block at its end.

    <!doctype html> …                                         the page
    <script type="application/x-cubemesh-bundle">             which a browser does not run
    {"schema": 1, "parts": [{"name", "bytes", "sha256"}, …]}  the manifest
    eJzT…                                                     a line a part: zlib in base64
    9f86d0…                                                   SHA-256 of all bytes before this line
    </script>
    </body>
    </html>

`read` refuses a file in which any byte differs, and never decompresses more than a part declares.
The checksums find damage, not a forger, who can compute them again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cubemesh.durable_files import replace_file
from cubemesh.errors import DataError, UsageError
from cubemesh.schema.serialization import canonical_json
from cubemesh.untrusted import clean, parse_json, quoted, shown_path

SCHEMA = 1
MAX_FILE_BYTES = 256 << 20
MAX_PART_BYTES = 128 << 20
MAX_BYTES = 512 << 20
"""Of all parts, decompressed."""
MAX_PARTS = 100_000
_OPENING = b'\n<script type="application/x-cubemesh-bundle">\n'
_CLOSING = b"\n</script>\n</body>\n</html>\n"
_PAGE_END = b"</body>\n</html>"
_NAME = re.compile(
    r"(machine|run|experiment-run)-[0-9a-z_-]{1,64}\.json"
    r"|files/[0-9a-f]{1,64}/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
)
_NARROWER = "Choose fewer runs (--run, --limit), or leave out their files (--no-files)."


@dataclass(frozen=True)
class Part:
    """A compressed part."""

    size: int
    """Bytes, decompressed."""
    sha256: str
    data: bytes

    @classmethod
    def of(cls, plain: bytes) -> Part:
        """A part that holds `plain`."""
        return cls(len(plain), hashlib.sha256(plain).hexdigest(), zlib.compress(plain, 9))


@dataclass(frozen=True, kw_only=True)
class BundleFile:
    """What a file holds, checked."""

    path: Path
    version: str
    """Of the cubemesh that made it."""
    made_utc: str
    sha256: str
    """Of everything before it in the file."""
    parts: Mapping[str, bytes]
    """By name, decompressed."""


def is_bundle(path: Path) -> bool:
    """Whether a file is meant to be a bundle: it is an HTML page."""
    try:
        with _open(path) as file:
            return file.read(64).lstrip().lower().startswith(b"<!doctype html")
    except (OSError, ValueError):
        return False


def write(path: Path, page: str, parts: Mapping[str, Part], *, version: str, made_utc: str) -> str:
    """Write a bundle whole or not at all; its checksum. UsageError if it would be larger than
    `read` accepts; OSError where the file cannot be written."""
    manifest = {
        "schema": SCHEMA,
        "version": version,
        "made_utc": made_utc,
        "parts": [
            {"name": name, "bytes": part.size, "sha256": part.sha256}
            for name, part in parts.items()
        ],
    }
    before, end, _ = page.encode("utf-8", errors="backslashreplace").rpartition(_PAGE_END)
    if not end:
        raise ValueError("the page has no end")
    pieces = [before.rstrip(b"\n"), _OPENING, canonical_json(manifest).encode("ascii"), b"\n"]
    for part in parts.values():
        pieces += [base64.b64encode(part.data), b"\n"]
    size = sum(map(len, pieces))
    largest = max((part.size for part in parts.values()), default=0)
    whole = sum(part.size for part in parts.values())
    if (
        size > MAX_FILE_BYTES - 1000
        or largest > MAX_PART_BYTES
        or whole > MAX_BYTES
        or len(parts) > MAX_PARTS
    ):
        raise UsageError(
            f"The bundle would have {size >> 20:,} MiB, {whole >> 20:,} MiB decompressed; the most "
            f"are {MAX_FILE_BYTES >> 20:,} and {MAX_BYTES >> 20:,} MiB, and {MAX_PART_BYTES >> 20} "
            f"MiB for a run or file. {_NARROWER}"
        )
    body = b"".join(pieces)
    digest = hashlib.sha256(body).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, body + digest.encode() + _CLOSING)
    return digest


def read(path: Path) -> BundleFile:
    """Read a bundle and check it. DataError, in one sentence, if it cannot be read, is no bundle,
    is damaged, or holds more than it declares."""
    data = _contents(path)
    where = f"The bundle {shown_path(path)}"
    opening = data.rfind(_OPENING)
    if opening < 0:
        raise DataError(
            f"{shown_path(path)} is not a share bundle, or its end is missing: copy it again. "
            "`cubemesh bundle create` makes one."
        )
    block = data[opening + len(_OPENING) :]
    lines = block.removesuffix(_CLOSING).split(b"\n")
    digest = lines.pop()
    checked = hashlib.sha256(memoryview(data)[: len(data) - len(_CLOSING) - len(digest)])
    if not block.endswith(_CLOSING) or digest != checked.hexdigest().encode():
        raise DataError(
            f"{where} is damaged: its checksum (SHA-256) is not that of its contents. Copy it "
            "again from where it was made."
        )
    try:
        manifest = _manifest(lines[0])
        entries = manifest["parts"]
        if len(entries) != len(lines) - 1:
            raise ValueError(f"{len(lines) - 1} parts where {len(entries)} are listed")
        sizes = [_size(entry) for entry in entries]
        if sum(sizes) > MAX_BYTES or len(sizes) > MAX_PARTS:
            raise ValueError(f"its parts are larger than {MAX_BYTES >> 20} MiB")
        parts: dict[str, bytes] = {}
        for entry, size, line in zip(entries, sizes, lines[1:], strict=True):
            name = _name(entry)
            if name in parts:
                raise ValueError(f"two parts are named {quoted(name)}")
            parts[name] = _plain(name, size, entry.get("sha256"), line)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{where} cannot be read: {clean(str(error), 300)}.") from None
    return BundleFile(
        path=path,
        version=clean(str(manifest.get("version")), 40),
        made_utc=clean(str(manifest.get("made_utc")), 40),
        sha256=digest.decode(),
        parts=parts,
    )


def _manifest(line: bytes) -> dict[str, Any]:
    found = parse_json(line)
    if not isinstance(found, dict) or not isinstance(found.get("parts"), list):
        raise ValueError("its manifest lists no parts")
    if found.get("schema") != SCHEMA:
        raise ValueError(
            f"its schema is {quoted(found.get('schema'))}, this cubemesh reads {SCHEMA}; upgrade it"
        )
    return found


def _size(entry: Mapping[str, Any]) -> int:
    size = entry["bytes"]
    if not isinstance(size, int) or not 0 <= size <= MAX_PART_BYTES:
        raise ValueError(f"a part of {quoted(size)} bytes; the most are {MAX_PART_BYTES >> 20} MiB")
    return size


def _name(entry: Mapping[str, Any]) -> str:
    name = entry["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{quoted(name)} is not the name of a part")
    return name


def _plain(name: str, size: int, sha256: object, line: bytes) -> bytes:
    """A part, decompressed: never more than it declares."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(base64.b64decode(line, validate=True), size + 1)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"part {name} is not compressed data ({error})") from None
    if len(plain) != size or not stream.eof or stream.unused_data:
        raise ValueError(f"part {name} does not have the {size:,} bytes that it declares")
    if hashlib.sha256(plain).hexdigest() != sha256:
        raise ValueError(f"part {name} has another checksum than it declares")
    return plain


def _contents(path: Path) -> bytes:
    try:
        with _open(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"The bundle {shown_path(path)} cannot be read: {reason}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise DataError(f"{shown_path(path)} is larger than a bundle, {MAX_FILE_BYTES >> 20} MiB.")
    return data


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """A regular file, opened without waiting: a FIFO would wait for a writer."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        yield file
