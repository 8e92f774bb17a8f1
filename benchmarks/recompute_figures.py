"""Recompute the figures of stored runs from their windows.

    python benchmarks/recompute_figures.py benchmarks/records/*.sqlite [--write]

The windows are the measurement; figures and their intervals follow from them by current methods.
Stored by an older version, a run may have intervals that take windows for independent and warnings
of a drift from the same cause, a throughput that differs from that of its windows (devices without
synchronization were once merged in lockstep), a stage of the input in samples/s instead of
images/s, or a projection to ImageNet of a network for other images. Without --write the differences
are only listed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.measure.collective_sweep import sweep_figures
from cubemesh.measure.figures import figures
from cubemesh.measure.timing.stopping_rule import confidence_of
from cubemesh.measure.validity import window_warnings
from cubemesh.networks.own_input import is_imagenet
from cubemesh.schema import Collective, Figure, Input, RunRecord, Warning, Window
from cubemesh.schema.comparison import RATIO
from cubemesh.schema.record import AGAINST
from cubemesh.store.json_text import to_text
from cubemesh.store.run_statistics import run_windows
from cubemesh.units import format_interval
from stored_runs import stored_runs

PROPORTIONAL = (
    *("model_flops_per_s", "model_bytes_per_s", "mfu_percent", "memory_use_percent"),
    *("ceiling_mfu_percent", "ceiling_memory_use_percent", "tokens_per_s"),
    *("rate_flops_per_s", "rate_bytes_per_s"),
)
"""Figures that were computed from the throughput."""
PROJECTION = "projected_90_epochs_days"
TOLERANCE = 0.001


def recomputed(record: RunRecord) -> RunRecord:
    """`record` with the figures and the warnings of a drift of its windows; itself where nothing
    differs."""
    found, windows = dict(record.figures), run_windows(record)
    if windows and record.ok:
        found |= _of_windows(record, windows)
    if isinstance(record.spec.work, Collective):
        swept = sweep_figures(
            record.sweep, record.spec.work.collective, record.spec.placement.devices
        )
        found |= {name: figure for name, figure in swept.items() if name in found}
    if not is_imagenet(record.spec.work):
        found.pop(PROJECTION, None)
    warnings = _warnings(record)
    if found == record.figures and warnings == record.warnings:
        return record
    return dataclasses.replace(record, figures=found, warnings=warnings)


def _of_windows(record: RunRecord, windows: Sequence[Window]) -> dict[str, Figure]:
    """The figures of a record that follow from its windows, where it has them."""
    stored, confidence = record.figures, confidence_of(record.spec.budget)
    own = figures(windows, 0.0, confidence)
    rate = own["throughput_per_s"]
    known = stored.get("throughput_per_s")
    factor = rate.value / known.value if known else 1.0
    unit = "images/s" if isinstance(record.spec.work, Input) else rate.unit
    found = {**own, "throughput_per_s": dataclasses.replace(rate, unit=unit)}
    for name in PROPORTIONAL:
        if (old := stored.get(name)) is not None:
            value = old.value * factor if abs(factor - 1) > TOLERANCE else old.value
            found[name] = dataclasses.replace(
                rate.scaled(value / rate.value, old.unit, old.method), value=value, n=old.n
            )
    if (ratio := ratio_of_record(record)) is not None:
        second = [w for w in record.windows if w.phase == AGAINST]
        against = figures(second, 0.0, confidence)
        found |= {f"against_{name}": figure for name, figure in against.items()}
        found[RATIO] = dataclasses.replace(stored[RATIO], low=ratio.low, high=ratio.high)
    return {name: figure for name, figure in found.items() if name in stored and name != "wall_s"}


def _warnings(record: RunRecord) -> tuple[Warning, ...]:
    """The record's warnings with those of a drift computed again."""
    if all(warning.code != "drift" for warning in record.warnings):
        return record.warnings
    series: dict[tuple[str, int], list[Window]] = {}
    for window in record.windows:
        if window.phase in ("measure", AGAINST):
            series.setdefault((window.phase, window.rank), []).append(window)
    drifts = [w for own in series.values() for w in window_warnings(own) if w.code == "drift"]
    place = next(i for i, w in enumerate(record.warnings) if w.code == "drift")
    others = [w for w in record.warnings if w.code != "drift"]
    return tuple(dict.fromkeys([*others[:place], *drifts, *others[place:]]))


def changed(path: Path) -> Iterator[tuple[RunRecord, RunRecord]]:
    """The runs of a store whose figures differ, before and after."""
    with stored_runs(path) as store:
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
            texts = [
                format_interval(rate.value, rate.low, rate.high, rate.unit) if rate else "no rate"
                for rate in rates
            ]
            print(f"{path.name} {before.run_id} {' → '.join(dict.fromkeys(texts))}")
        if arguments.write and pairs:
            write(path, [after for _, after in pairs])


if __name__ == "__main__":
    main()
