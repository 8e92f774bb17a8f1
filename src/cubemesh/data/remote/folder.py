"""Remote folder: byte ranges of files behind a URL, with resumption and a limit of attempts.

`is_url` and `check_url` never connect to anything: a request is only made by the process that reads
samples, and by `cubemesh prepare --list`.

An interrupted read resumes at the byte where it stopped. After `ATTEMPTS` failures in a row
without a byte the read is a DataError, the outcome of the run; so is one that is slower than
`SLOWEST_BYTES_PER_S` once `GRACE_S` have passed, all attempts and redirections included.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import monotonic_s
from cubemesh.untrusted import clean

PAUSES_S = (0.2, 1.0, 5.0)
"""Pauses between attempts."""
ATTEMPTS = len(PAUSES_S) + 1
SLOWEST_BYTES_PER_S = 1024
GRACE_S = 120.0
"""A read of n bytes takes at most GRACE_S + n / SLOWEST_BYTES_PER_S seconds."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)
HTTP = ("http", "https")


class TemporaryError(Exception):
    """A read failed, and may succeed when it is tried again; the message is the reason."""


class ReadDeadline:
    """Time limit of a read of `url`, which grows with the bytes that have come."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._begin_s = monotonic_s()
        self._received = 0

    def count(self, received: int) -> None:
        """Count bytes that have come."""
        self._received += received

    def check(self) -> float:
        """Seconds until the limit, unless more bytes come; DataError after it."""
        elapsed_s = monotonic_s() - self._begin_s
        left_s = GRACE_S + self._received / SLOWEST_BYTES_PER_S - elapsed_s
        if left_s <= 0:
            raise DataError(
                f"{clean(self.url, 200)} is too slow: {self._received:,} bytes came in "
                f"{elapsed_s:,.0f} s, and after {GRACE_S:g} s at least "
                f"{SLOWEST_BYTES_PER_S:,} bytes/s are needed. Copy the set to a faster server or a "
                "disk of this machine."
            )
        return left_s


class RemoteFolder(Protocol):
    """Files below a URL."""

    url: str

    def read(self, name: str, offset: int, size: int) -> bytes:
        """`size` bytes of a file, from `offset`. DataError where they cannot be read."""

    def read_file(self, name: str, most_bytes: int) -> bytes:
        """A whole file; DataError also where it has more than `most_bytes`."""


def is_url(path: str) -> bool:
    """Whether a data path is a URL, not a path on this machine."""
    return _URL.fullmatch(path) is not None


def check_url(url: str) -> None:
    """UsageError for a URL that cannot be that of a folder, or has a password; no connection is
    made."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"data_path={clean(url, 200)} is not a URL: {error}.") from error
    if "@" in parts.netloc:
        raise UsageError(
            "data_path is a URL with a user name or password, and every record would store it. "
            "Leave them out; fsspec reads credentials from its own configuration."
        )
    if parts.scheme.lower() in HTTP:
        if not parts.hostname:
            raise UsageError(f"data_path={clean(url, 200)} names no host.")
        if parts.query or parts.fragment:
            raise UsageError(
                f"data_path={clean(url, 200)} has a query, and names of files follow a folder. "
                "Give the URL of the folder that has manifest.json."
            )


def resumed(
    fetch: Callable[[int, bytearray], bool],
    deadline: ReadDeadline,
    pause: Callable[[float], None] | None = None,
) -> bytes:
    """What `fetch` reads in as many calls as it needs.

    `fetch(offset, into)` appends bytes from `offset` on and returns whether that was the end.
    TemporaryError is tried again after a pause, from the byte where it stopped; DataError after
    `ATTEMPTS` failures in a row without a byte, and after the `deadline`.
    """
    into = bytearray()
    failures = 0
    while True:
        before = len(into)
        try:
            if fetch(before, into):
                return bytes(into)
        except TemporaryError as error:
            failures = 0 if len(into) > before else failures + 1
            if failures == ATTEMPTS:
                raise DataError(
                    f"{clean(deadline.url, 200)} could not be read in {ATTEMPTS} attempts: "
                    f"{clean(str(error), 200)}. Check that the server answers, then run the same "
                    "command again."
                ) from error
            deadline.check()
            if failures:
                (pause or time.sleep)(PAUSES_S[failures - 1])
