"""`cubemesh compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import (
    AsJson,
    ExportFormat,
    ExportTo,
    FailBelow,
    StoreAt,
    check_export,
    show,
    write_export,
)


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Runs: an id or prefix, or KEY=VALUE,KEY=VALUE.",
            autocompletion=completion.runs,
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="Runs to compare with A.",
            autocompletion=completion.runs,
        ),
    ],
    store: StoreAt = None,
    store_b: Annotated[
        str | None,
        typer.Option("--store-b", metavar="PATH|URL", help="Result store of B; default: A's."),
    ] = None,
    fail_below: FailBelow = None,
    export: ExportTo = None,
    format: ExportFormat = None,
    as_json: AsJson = False,
) -> None:
    """Compare the throughput of stored runs. Lists what differs between them."""
    from cubemesh.api.compare import compare as compare_runs
    from cubemesh.exports import STDOUT
    from cubemesh.views.json_output import comparison_json
    from cubemesh.views.terminal import print_answer

    check_export(export, format, as_json)
    found = compare_runs(first, second, store=store, store_b=store_b, fail_below=fail_below)
    if export is not None:
        write_export(found, export, format, store, store_b)
    if export != STDOUT:
        show(comparison_json(found), as_json, lambda console: print_answer(console, found.answer))
    raise typer.Exit(found.gate.exit_code if found.gate else 0)
