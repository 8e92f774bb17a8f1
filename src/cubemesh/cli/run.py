"""`cubemesh run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import (
    AsJson,
    ExportFormat,
    ExportTo,
    FailBelow,
    Hosts,
    NoCache,
    Pythons,
    Settings,
    StoreAt,
    Wait,
    check_export,
    show,
    tell,
    write_export,
)


def run(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Experiments or suites; `cubemesh experiments` lists them.",
            autocompletion=completion.experiments_and_suites,
        ),
    ],
    settings: Settings = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As thorough as the papers.")] = False,
    store: StoreAt = None,
    no_cache: NoCache = False,
    wait: Wait = "0",
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="KEY=VALUE",
            help="Interleaved A/B with a program that differs in this; may be repeated.",
            autocompletion=completion.settings,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="PATH|URL", help="Compare with the runs of this earlier store."
        ),
    ] = None,
    fail_below: FailBelow = None,
    pythons: Pythons = None,
    hosts: Hosts = None,
    export: ExportTo = None,
    format: ExportFormat = None,
    wait_quiet: Annotated[
        str,
        typer.Option(
            "--wait-quiet",
            metavar="DURATION",
            help="Wait up to this long (10m) for other programs to end.",
        ),
    ] = "0",
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="DURATION",
            help="Start no run after this long (5m); experiments share the time equally.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Also write the results as an HTML page."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run experiments and print their results. Stored runs are reused."""
    from cubemesh.api.run import run as run_experiments
    from cubemesh.cli.report import write_page
    from cubemesh.exports import STDOUT
    from cubemesh.views import summary, terminal
    from cubemesh.views.json_output import run_json
    from cubemesh.views.progress import TerminalProgress

    check_export(export, format, as_json)
    found = run_experiments(
        *names,
        settings=settings or (),
        quick=quick,
        full=full,
        store=store,
        no_cache=no_cache,
        wait=wait,
        against=against or (),
        baseline=baseline,
        fail_below=fail_below,
        pythons=pythons or (),
        hosts=() if hosts is None else hosts,
        wait_quiet=wait_quiet,
        within=within,
        observer=TerminalProgress(terminal.stderr_console()),
    )
    if export is not None:
        write_export(found, export, format, store)
    if export != STDOUT:
        show(run_json(found), as_json, lambda console: summary.print_run(console, found))
    messages = [" ".join(found.missed_targets)] if found.missed_targets else []
    if found.gate is not None:  # what decides the exit code is said last
        messages.insert(len(messages) if found.gate.exit_code else 0, found.gate.sentence)
    for message in messages:
        tell(message)
    if page is not None:  # after the figures, which a page that cannot be written must not lose
        write_page(page, *(one.experiment_run.experiment for one in found.experiments), store=store)
        if export != STDOUT and not as_json:
            summary.print_page(terminal.stdout_console(), page)
    raise typer.Exit(found.exit_code)
