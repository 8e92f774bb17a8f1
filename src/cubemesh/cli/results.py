"""`cubemesh results`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, StoreAt, show


def results(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run id or unique prefix.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Filter by network.")] = None,
    framework: Annotated[str | None, typer.Option(help="Filter by framework.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Filter by outcome.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of most recent runs.")] = 50,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """List stored runs. With a run id, everything about that run."""
    from cubemesh.api import results as api
    from cubemesh.views import terminal
    from cubemesh.views.json_output import envelope, record_json

    if run_id is not None:
        one, series = api.record(run_id, store=store), api.telemetry(run_id, store=store)
        show(
            envelope("record", record=record_json(one)),
            as_json,
            lambda console: terminal.print_record(console, one, series),
        )
        return
    found = api.results(
        network=network, framework=framework, outcome=outcome, limit=limit, store=store
    )
    show(
        envelope("results", records=[record_json(r) for r in found.records]),
        as_json,
        lambda console: terminal.print_results(
            console, found.records, filtered=bool(network or framework or outcome)
        ),
    )
