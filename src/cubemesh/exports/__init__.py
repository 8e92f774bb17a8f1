"""Exports: stored runs as files of other tools. One file a format, and one line in `FORMATS`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from cubemesh.durable_files import replace_file
from cubemesh.errors import UsageError, unknown_name
from cubemesh.exports import (
    csv_file,
    json_lines,
    junit,
    mllog,
    openmetrics,
    parquet,
    perfetto,
)
from cubemesh.exports.contents import ExportedRuns, Format

FORMATS: dict[str, Format] = {
    "csv": Format(write=csv_file.write, suffixes=(".csv",)),
    "parquet": Format(write=parquet.write, suffixes=(".parquet",)),
    "jsonl": Format(write=json_lines.write, suffixes=(".jsonl", ".ndjson")),
    "openmetrics": Format(write=openmetrics.write, suffixes=(".prom", ".om")),
    "mllog": Format(write=mllog.write, suffixes=(".mllog",)),
    "perfetto": Format(write=perfetto.write, suffixes=(".pftrace", ".perfetto-trace")),
    "junit": Format(write=junit.write, suffixes=(".xml",)),
}
STDOUT = "-"
"""Name of a file that means standard output."""


def format_of(file: str, name: str | None = None) -> str:
    """The format called `name`, else the one that the end of the file's name selects; UsageError
    for another name, or an end that selects no format."""
    if name is not None:
        if name not in FORMATS:
            raise unknown_name("format of an export", name, FORMATS, plural="formats")
        return name
    for known, entry in FORMATS.items():
        if file.lower().endswith(entry.suffixes):
            return known
    ends = ", ".join(suffix for entry in FORMATS.values() for suffix in entry.suffixes)
    raise UsageError(
        f"'{file}' does not end in {ends}: choose such a name, or add --format {'|'.join(FORMATS)}."
    )


def export_file(runs: ExportedRuns, file: str, name: str | None = None) -> str:
    """Write the runs into a file, or to standard output for `-`; the format's name.

    The file is written next to its place and then moved there: a reader, such as a collector of
    metrics, never sees a part of it. UsageError if it cannot be written.
    """
    chosen = format_of(file, name)
    written = io.BytesIO()
    FORMATS[chosen].write(runs, written)
    if file == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(written.getvalue())
        return chosen
    try:
        replace_file(Path(file), written.getvalue())
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror}. Choose another path."
        ) from None
    return chosen
