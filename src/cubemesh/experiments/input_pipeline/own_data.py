"""Findings and stages of data of the user's own: what a sample costs, and how many workers the
device needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cubemesh.experiments.analysis.answer import cell_or_dash
from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.networks import rate_unit
from cubemesh.schema import Cell, Column, Figure, Finding, NetworkWork, Table
from cubemesh.units import format_quantity

SCALES = 0.5
"""Part of the rate of one thread that each of several has, below which they hold one another up."""


def is_own(groups: Mapping[Any, Group[Any]]) -> bool:
    """Whether these are measurements of data of the user's own."""
    return bool({"item", "item-one", "collate", "own"} & groups.keys())


def unit_of(groups: Mapping[Any, Group[Any]]) -> str:
    """Unit of the rates: of what the network takes; photographs are images."""
    works = (r.spec.work for g in groups.values() for r in g.records)
    names = [w.network for w in works if isinstance(w, NetworkWork)]
    return rate_unit(names[0]) if names and is_own(groups) else "images/s"


def workers(group: Group[Any]) -> tuple[int, str]:
    """What took the samples: a number and `threads`, `workers` of a DataLoader, or `process`."""
    threads, processes = group.median_of("input_threads"), group.median_of("input_workers")
    if processes:
        return int(processes), "worker" if processes == 1 else "workers"
    if threads:
        return int(threads), "thread" if threads == 1 else "threads"
    return 1, "process"


def own_workers(groups: Mapping[Any, Group[Any]], device: Figure) -> Iterator[Finding]:
    """Time of a sample, its rate with one worker and with all, and the workers that the device
    needs."""
    alone, item = groups.get("item-one"), groups.get("item")
    one = None if alone is None else alone.throughput
    all_ = None if item is None else item.throughput
    if one is None and all_ is None:
        return
    unit, text, remedy = unit_of(groups), "", ""
    count, kind = (1, "thread") if item is None or all_ is None else workers(item)
    each = one.value if all_ is None else all_.value / count  # type: ignore[union-attr]
    if one is not None:
        text = (
            f"A sample takes {format_quantity(1 / one.value, 's')} in one thread "
            f"({one.value:,.0f} {unit}); "
        )
    if all_ is not None:
        text += f"{count} {kind}: {all_.value:,.0f} {unit}, {each:,.0f} each. "
    blocked = one is not None and kind == "threads" and each < SCALES * one.value
    rate = one.value if blocked and one is not None else each
    needed = math.ceil(device.value / rate)
    if blocked:
        text += "The threads hold one another up, as code that keeps Python's global lock does. "
        remedy = f"Return a DataLoader with num_workers={needed}: its workers are processes."
    elif needed > count:
        more = f"num_workers={needed} in the DataLoader"
        remedy = f"Set {more if kind in ('worker', 'workers') else f'input_threads={needed}'}."
    noun = "worker" if needed == 1 else "workers"
    yield Finding(
        code="required-workers",
        question="How many workers does the device need?",
        text=f"{text}This device needs {needed} {noun} of {rate:,.0f} {unit}.",
        value=needed,
        unit=noun,
        remedy=remedy,
        caveats=caveats(*(g for g in (item or alone, groups["device"]) if g is not None)),
    )


def stage_table(stages: Sequence[Group[Any]], labels: Mapping[Any, str], unit: str) -> Table:
    """Stages with their workers, the rate of each and the time of a sample."""
    return Table(
        title="Stages",
        columns=(
            Column(name="stage"),
            Column(name=unit),
            Column(name="workers"),
            Column(name=f"{unit} per worker"),
            Column(name="sample", unit="ms"),
        ),
        rows=tuple(
            (
                Cell(text=labels[group.key], run_id=group.run_id),
                group.cell(group.throughput),
                *_cells(group),
            )
            for group in stages
        ),
    )


def _cells(group: Group[Any]) -> tuple[Cell, ...]:
    """Workers, rate of each, and milliseconds of a sample in one of them."""
    rate = group.throughput
    if rate is None:
        return (cell_or_dash(None),) * 3
    count = 1 if group.key == "copy" else workers(group)[0]
    each = rate.value / count
    shown = () if group.key == "copy" else (count, each)
    return (*map(cell_or_dash, shown or (None, None)), cell_or_dash(1e3 / each))
