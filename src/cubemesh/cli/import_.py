"""`cubemesh import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, StoreAt, show, tell


def import_(
    file: Annotated[
        Path, typer.Argument(help="Output of nccl-tests, or of `cubemesh collectives --json`.")
    ],
    collective: Annotated[
        str | None,
        typer.Option(metavar="OPERATION", help="The operation, if the log does not name it."),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Import results of nccl-tests for comparison. Sweeps that are stored are not added again."""
    from cubemesh.api.import_ import import_measurements
    from cubemesh.views import collectives as view

    found = import_measurements(file, operation=collective, store=store)
    document = view.document(found) | {"new": list(found.new)}
    show(document, as_json, lambda console: view.print_sweeps(console, found))
    known, sweeps = len(found.records) - len(found.new), len(found.records)
    if known:
        added = f"{len(found.new)} were added" if found.new else "nothing was added"
        tell(f"{known} of {sweeps} sweeps of {file} were stored already; {added}.")
