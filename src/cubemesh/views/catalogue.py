"""What there is to choose from: networks and experiments, as tables for people and as plain data.

Each function gives the document of `--json` and a function that prints the same on a console.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.experiments.registry import EXPERIMENTS, SUITES, entry
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.networks import NETWORKS, build, canonical_name, describe
from cubemesh.schema import Budget, Cell, Column, Placement, ProgramSettings, Table
from cubemesh.units import format_count, format_quantity
from cubemesh.views import terminal
from cubemesh.views.fields import FieldWords, describe_fields
from cubemesh.views.json_output import envelope

Shown = tuple[dict[str, Any], Callable[[Console], None]]


def networks() -> Shown:
    """Every network there is, a line each."""
    lines = [describe.summary(name) for name in NETWORKS]
    table = Table(
        title="Networks",
        columns=_columns("network", "input", "classes", "parameters", "forward a sample", "source"),
        rows=tuple(
            _texts(
                line["name"],
                "×".join(map(str, line["input_shape"])),
                line["classes"],
                format_count(line["parameters"]),
                format_quantity(line["forward_flops"], "FLOP"),
                line["source"],
            )
            for line in lines
        ),
    )
    note = (
        "FLOPs of convolutions and matrix products; a multiply-add is two. "
        "`cubemesh networks NAME` shows one layer by layer."
    )
    return envelope("networks", networks=lines), lambda console: _print(console, table, note=note)


def network(name: str) -> Shown:
    """One network, a line a layer."""
    name = canonical_name(name)
    summary, rows = describe.summary(name), describe.layer_rows(build(name))
    table = Table(
        title=f"{name}, layer by layer",
        columns=_columns(
            "name", "layer", "settings", "output", "parameters", "forward", "moved", "segment"
        ),
        rows=tuple(
            _texts(
                row.name,
                row.layer,
                row.settings,
                "×".join(map(str, row.output_shape)),
                format_count(row.parameters) if row.parameters else "",
                format_quantity(row.forward_flops or row.forward_other_flops, "FLOP"),
                format_quantity(row.forward_moved_bytes, "B"),
                row.segment,
            )
            for row in rows
        ),
    )
    used = summary["evaluation_parameters"]
    auxiliary = (
        f", {format_count(used)} of them without the heads that only training has"
        if used < summary["parameters"]
        else ""
    )
    note = (
        f"{format_count(summary['parameters'])} parameters{auxiliary}; "
        f"{format_quantity(summary['forward_flops'], 'FLOP')} forward and "
        f"{format_quantity(summary['backward_flops'], 'FLOP')} backward a sample in convolutions "
        f"and matrix products. {summary['source']}. {summary['differs']}"
    )
    plain = envelope("network", network=summary, layers=[dataclasses.asdict(row) for row in rows])
    return plain, lambda console: _print(console, table, note=note.strip())


def experiments() -> Shown:
    """Every experiment and every suite, a line each."""
    table = Table(
        title="Experiments",
        columns=_columns("experiment", "question", "documents"),
        rows=tuple(_texts(e.name, e.question, e.documents) for e in EXPERIMENTS.values()),
    )
    suites = Table(
        title="Suites",
        columns=_columns("suite", "what it is", "answers"),
        rows=tuple(_texts(name, s.summary, str(len(s.asks))) for name, s in SUITES.items()),
    )
    frameworks = Table(
        title="Frameworks",
        columns=_columns("framework", "what it is", "to install it"),
        rows=tuple(
            _texts(name, f.summary, "installed" if f.installed else f.install)
            for name, f in FRAMEWORKS.items()
        ),
    )
    note = (
        "`cubemesh run NAME` asks an experiment or a suite; `cubemesh experiments NAME` says what "
        "can be set in an experiment; --json lists what a suite asks."
    )
    plain = envelope(
        "experiments",
        frameworks=[
            {"name": n, "summary": f.summary, "installed": f.installed, "install": f.install}
            for n, f in FRAMEWORKS.items()
        ],
        experiments=[
            {"name": e.name, "question": e.question, "documents": e.documents}
            for e in EXPERIMENTS.values()
        ],
        suites=[
            {"name": name, "summary": s.summary, "experiments": [a.experiment for a in s.asks]}
            for name, s in SUITES.items()
        ],
    )
    return plain, lambda console: _print(console, table, suites, frameworks, note=note)


def experiment(name: str) -> Shown:
    """One experiment with everything that can be set in it."""
    found = entry(name)
    own = describe_fields(found.settings)
    fields: dict[str, FieldWords] = {}
    for part in (*found.works, Placement, ProgramSettings, Budget):
        fields |= describe_fields(part)
    fields = {n: f for n, f in fields.items() if n not in own and n not in found.varies}
    table = Table(
        title=f"{found.name}: {found.question}",
        columns=_columns("--set", "values", "default", "means"),
        rows=tuple(
            _texts(f"{f.name}=", f.type, _default(f.default), f.means)
            for f in (*own.values(), *fields.values())
        ),
    )
    plain = envelope(
        "experiment",
        name=found.name,
        question=found.question,
        settings=[dataclasses.asdict(f) for f in own.values()],
        fields=[dataclasses.asdict(f) for f in fields.values()],
    )
    return plain, lambda console: _print(console, table)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name) for name in names)


def _texts(*values: Any) -> tuple[Cell, ...]:
    return tuple(Cell(text=str(value)) for value in values)


def _print(console: Console, *tables: Table, note: str = "") -> None:
    for table in tables:
        terminal.print_table(console, table)
    if note:
        console.print(Text(note))
