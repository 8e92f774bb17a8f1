"""What is compressed in a page: the details of runs, and records, beyond some size.

A packed text is gzip in base64, which the script of the page unpacks when it is asked for.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from markupsafe import Markup

RECORDS_BYTES = 500_000
"""Records of more bytes are packed."""
DETAILS_BYTES = 1_500_000
"""How many bytes the details of runs take as they are, less `BYTES_PER_RUN`: the first ones stay
as they are, and all of them in a page of some dozen runs."""
BYTES_PER_RUN = 2_000
"""What each run takes at least: its line, and packed details."""
RUNS_PER_PACK = 32
"""Unpacked together: more are smaller, and slower to open."""
_LEVEL = 9


def packed(text: str) -> str:
    """`text` as gzip in base64; the same text gives the same bytes."""
    data = gzip.compress(text.encode("utf-8", errors="backslashreplace"), _LEVEL, mtime=0)
    return base64.b64encode(data).decode("ascii")


@dataclass
class Details:
    """The details of runs in the order of the page: the first ones stay as they are."""

    runs: int
    """How many runs the page has."""
    count: int = 0
    """Runs whose details are packed."""
    _packs: list[str] = field(default_factory=list)
    _waiting: dict[str, str] = field(default_factory=dict)
    """Details of the next pack, by run id."""
    _plain: int = 0

    @property
    def full(self) -> bool:
        """Whether the details of the next run are to be packed."""
        return self._plain >= DETAILS_BYTES - BYTES_PER_RUN * self.runs

    def keep(self, body: str) -> None:
        """Count the details of a run that stay as they are."""
        self._plain += len(body)

    def pack(self, run_id: str, body: str) -> str:
        """The id of the pack that takes the details of a run."""
        self.count += 1
        self._waiting[run_id] = str(body)
        pack = f"pack-{len(self._packs) + 1}"
        if len(self._waiting) == RUNS_PER_PACK:
            self._finish()
        return pack

    def packs(self) -> Iterator[tuple[str, Markup]]:
        """Id and contents of every pack: packed JSON of run id to details."""
        if self._waiting:
            self._finish()
        for number, text in enumerate(self._packs, start=1):
            yield f"pack-{number}", Markup(text)

    def _finish(self) -> None:
        self._packs.append(packed(json.dumps(self._waiting, ensure_ascii=False)))
        self._waiting = {}
