"""JSON lines: one object a run, the same as in `records` of `cubemesh results --json`."""

from __future__ import annotations

import json
from typing import BinaryIO

from cubemesh.exports.contents import ExportedRuns
from cubemesh.exports.record_json import SCHEMA, record_json


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write each run on a line of its own, in ASCII."""
    for record in runs.records:
        document = {"schema": SCHEMA, "kind": "record", **record_json(record)}
        line = json.dumps(document, allow_nan=False, separators=(",", ":"))
        file.write(line.encode("ascii") + b"\n")
