"""CSV (RFC 4180): a header, then one line a run.

Numbers have every digit of the float, so that reading them gives the same value. A spreadsheet
evaluates a cell of text that begins with = + - @ as a formula; such text, which may come from an
error message or a file name, gets an apostrophe in front (OWASP, "CSV Injection"). Numbers never
do.
"""

from __future__ import annotations

import csv
import io
from typing import Any, BinaryIO

from cubemesh.exports.contents import ExportedRuns
from cubemesh.exports.table import table_rows

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write a header and a line for each run, in UTF-8; nothing without runs."""
    rows = table_rows(runs.records)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", errors="backslashreplace")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerows([list(rows[0])] if rows else [])
    lines.writerows([_cell(value) for value in row.values()] for row in rows)
    text.detach()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = value.replace("\0", "")  # not text, and readers end the file there
        return f"'{value}" if value.startswith(_FORMULA) else value
    return repr(value)
