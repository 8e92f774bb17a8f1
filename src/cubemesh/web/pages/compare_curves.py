"""Curves of several runs, for charts with a line a run: losses, accuracy and throughput."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cubemesh.schema import RunRecord
from cubemesh.store.run_statistics import run_windows
from cubemesh.untrusted import clean
from cubemesh.views.formatting import run_name, words
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.pages.compare import MOST_DIFFERENCES, differences, records_of
from cubemesh.web.pages.compare import PARAMETERS as COMPARE_PARAMETERS
from cubemesh.web.thinned_curve import thinned

PARAMETERS = (
    *COMPARE_PARAMETERS,
    Parameter(
        name="points", summary="Most points of a line, 1 to 4000; default: 6000 / runs, from 100."
    ),
)
_POINTS, _FEWEST_POINTS, _MOST_POINTS = 6000, 100, 4000


def document(asked: Asked) -> dict[str, Any]:
    """Each curve, with a line for each run that has it. `place` is that of the run among those
    given, and `label` is what differs."""
    records = records_of(asked)
    default = min(_MOST_POINTS, max(_FEWEST_POINTS, _POINTS // max(1, len(records))))
    points = asked.number("points", default, _MOST_POINTS)
    labels = labels_of(asked, records)
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for place, record in enumerate(records):
        for name, unit, x_name, x, y in _curves(record):
            line = thinned(name, unit, x_name, x, y, points)
            own = {"run_id": record.run_id, "label": labels[place], "place": place}
            own |= {"points": line["points"], "x": line["x"], "y": line["y"]}
            found.setdefault((name, unit, x_name), []).append(own)
    curves = [
        {"name": name, "unit": unit, "x_name": x_name, "lines": lines}
        for (name, unit, x_name), lines in found.items()
    ]
    return envelope("compared_curves", run_ids=[record.run_id for record in records], curves=curves)


def _curves(record: RunRecord) -> Iterator[tuple[str, str, str, list[float], list[float]]]:
    """The curves of a run: name, unit, name of x, x and y."""
    for curve in record.curves:
        if curve.name not in record.series and curve.x:
            yield words(curve.name), "", words(curve.x_name), list(curve.x), list(curve.y)
    windows = [w for w in run_windows(record) if w.elapsed_s > 0] if record.ok else []
    if len(windows) > 1:
        ends = [window.start_s + window.elapsed_s for window in windows]
        rates = [window.samples / window.elapsed_s for window in windows]
        yield "throughput", "samples/s", "seconds", ends, rates


def labels_of(asked: Asked, records: list[RunRecord]) -> list[str]:
    """What differs of each run, by its first few settings; of repeats their names."""
    rows = [(what, values) for what, values in differences(asked, records) if what != "warnings"]
    shown = rows[:MOST_DIFFERENCES]
    return [
        clean(", ".join(f"{what} {values[place] or '–'}" for what, values in shown), 120)
        or clean(run_name(record.spec), 120)
        for place, record in enumerate(records)
    ]


def view(asked: Asked) -> dict[str, Any]:
    """The same as tables, one for each line."""
    found = document(asked)
    tables = [
        {
            "name": f"{curve['name']} of {line['run_id']}, {line['label']}",
            **{name: curve[name] for name in ("unit", "x_name")},
            **{name: line[name] for name in ("x", "y", "points")},
        }
        for curve in found["curves"]
        for line in curve["lines"]
    ]
    return {"ids": found["run_ids"], "curves": tables}
