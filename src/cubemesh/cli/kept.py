"""The verbs that read what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, StoreAt, open_store, show


def results(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Show this run; its id or how it begins.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Only runs of this network.")] = None,
    framework: Annotated[str | None, typer.Option(help="Only runs of this framework.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only runs that ended so.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the latest runs.")] = 50,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """The runs that are kept. With a run's id, everything about it."""
    from cubemesh.frameworks import entry
    from cubemesh.networks import canonical_name
    from cubemesh.views import json_output as plain
    from cubemesh.views import terminal

    filtered = bool(network or framework or outcome)
    network = network and canonical_name(network)
    if framework is not None:
        entry(framework)  # says which is the nearest to a name that is none
    with open_store(store, reading=True) as opened:
        if run_id is not None:
            record = opened.record(run_id)
            show(
                plain.envelope("record", record=plain.record_json(record)),
                as_json,
                lambda console: terminal.print_record(console, record),
            )
            return
        records = opened.records(network=network, framework=framework, outcome=outcome, limit=limit)
    show(
        plain.envelope("results", records=[plain.record_json(r) for r in records]),
        as_json,
        lambda console: terminal.print_results(console, records, filtered=filtered),
    )


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Only these experiments or documents; default: all there are."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "cubemesh-report.html"
    ),
    charts: Annotated[
        Path | None,
        typer.Option("--charts", metavar="DIR", help="Also write each chart as SVG and PNG."),
    ] = None,
    machine_id: Annotated[
        str,
        typer.Option(
            "--machine-id",
            metavar="ID",
            help="The machine it is about, by the beginning of its id; default: the one measured "
            "on last.",
        ),
    ] = "",
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """One self-contained page of the latest answers. It is readable offline."""
    from cubemesh.views.report import builder as publish

    with open_store(store, reading=True) as opened:
        written = publish.report(opened, names or [], output, charts, machine_id)
    show(written.plain(), as_json, written.print)
