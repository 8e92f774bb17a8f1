"""`cubemesh results`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import (
    AsJson,
    ExportFormat,
    ExportTo,
    StoreAt,
    check_export,
    show,
    write_export,
)

SHOWN = 50
"""Runs that are listed by default."""


def results(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Run id or unique prefix.", autocompletion=completion.runs
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Filter by network.",
            autocompletion=completion.networks,
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="Filter by framework.",
            autocompletion=completion.frameworks,
        ),
    ] = None,
    outcome: Annotated[str | None, typer.Option(help="Filter by outcome.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Number of most recent runs; default: 50, with --export all."),
    ] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="First store the runs that wait in the spool.")
    ] = False,
    export: ExportTo = None,
    format: ExportFormat = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """List stored runs, or write them to a file. With a run id, everything about that run."""
    from cubemesh.api import results as api
    from cubemesh.exports.record_json import record_json
    from cubemesh.schema.serialization import to_plain
    from cubemesh.views import terminal
    from cubemesh.views.json_output import envelope

    check_export(export, format, as_json)
    if recover:
        api.recover(store=store)
    if export is not None:
        runs = (
            [api.record(run_id, store=store)]
            if run_id is not None
            else api.results(
                network=network, framework=framework, outcome=outcome, limit=limit, store=store
            )
        )
        done = write_export(runs, export, format, store)
        if as_json:
            show(envelope("export", **vars(done)), as_json, lambda _: None)
        return
    if run_id is not None:
        one, series = api.record(run_id, store=store), api.telemetry(run_id, store=store)
        show(
            envelope("record", record=record_json(one)),
            as_json,
            lambda console: terminal.print_record(console, one, series),
        )
        return
    found = api.results(
        network=network, framework=framework, outcome=outcome, limit=limit or SHOWN, store=store
    )
    show(
        envelope(
            "results",
            records=[record_json(r) for r in found.records],
            damaged=[to_plain(one) for one in found.damage],
        ),
        as_json,
        lambda console: terminal.print_results(
            console, found.records, filtered=bool(network or framework or outcome)
        ),
    )
