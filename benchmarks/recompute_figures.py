"""Recompute the figures of stored runs from their windows.

    python benchmarks/recompute_figures.py benchmarks/records/*.sqlite [--write]

Stored by an older version, a run may have a throughput that differs from that of its windows
(devices without synchronization were once merged in lockstep), a stage of the input in samples/s
instead of images/s, or a projection to ImageNet of a network for other images. The windows are the
measurement; figures that follow from the throughput are scaled with it. Without --write the
differences are only listed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cubemesh.measure.figures import figures
from cubemesh.networks.own_input import is_imagenet
from cubemesh.schema import Figure, Input, RunRecord
from cubemesh.store import Store
from cubemesh.store.json_text import to_text
from cubemesh.store.run_statistics import run_windows

SCALED = (
    *("model_flops_per_s", "model_bytes_per_s", "mfu_percent", "memory_use_percent"),
    *("ceiling_mfu_percent", "ceiling_memory_use_percent"),
)
"""Figures that were computed from the throughput."""
PROJECTION = "projected_90_epochs_days"
TOLERANCE = 0.001


def recomputed(record: RunRecord) -> RunRecord:
    """`record` with the figures of its windows; itself where nothing differs."""
    found = dict(record.figures)
    rate, windows = found.get("throughput_per_s"), run_windows(record)
    if rate is not None and windows:
        own = figures(windows, 0.0)
        factor = own["throughput_per_s"].value / rate.value
        if abs(factor - 1) > TOLERANCE:
            found |= {name: own[name] for name in ("throughput_per_s", "step_s", PROJECTION)}
            found |= {n: _times(found[n], factor) for n in SCALED if n in found}
        if isinstance(record.spec.work, Input):
            rate = found["throughput_per_s"]
            found["throughput_per_s"] = dataclasses.replace(rate, unit="images/s")
    if not is_imagenet(record.spec.work):
        found.pop(PROJECTION, None)
    return record if found == record.figures else dataclasses.replace(record, figures=found)


def _times(figure: Figure, factor: float) -> Figure:
    return figure.scaled(factor, figure.unit, figure.method)


def changed(path: Path) -> Iterator[tuple[RunRecord, RunRecord]]:
    """The runs of a store whose figures differ, before and after."""
    with Store.open(str(path), must_exist=True, read_only=True) as store:
        for record in store.records():
            if (after := recomputed(record)) is not record:
                yield record, after


def write(path: Path, records: list[RunRecord]) -> None:
    """Replace these runs in a store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for record in records:
            connection.execute(
                "UPDATE records SET record = ? WHERE run_id = ?", (to_text(record), record.run_id)
            )


def main() -> None:
    """List the differences, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the stored figures")
    arguments = parser.parse_args()
    for path in arguments.stores:
        pairs = list(changed(path))
        for before, after in pairs:
            rates = [r.figures.get("throughput_per_s") for r in (before, after)]
            texts = [f"{rate.value:,.1f} {rate.unit}" if rate else "no rate" for rate in rates]
            print(f"{path.name} {before.run_id} {' → '.join(dict.fromkeys(texts))}")
        if arguments.write and pairs:
            write(path, [after for _, after in pairs])


if __name__ == "__main__":
    main()
