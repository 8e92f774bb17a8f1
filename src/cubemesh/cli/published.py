"""`cubemesh published`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, show


def published(
    network: Annotated[
        str | None,
        typer.Argument(
            help="Only figures of this network.",
            autocompletion=completion.networks,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Only devices whose name contains this text.")
    ] = None,
    above_peak: Annotated[
        bool, typer.Option("--above-peak", help="Only figures above the peak of their device.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Show the first N figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """List published figures with their MFU. It is the fraction of the device's peak."""
    from cubemesh import published_figures
    from cubemesh.views import published as view

    found = published_figures(network, device=device, above_peak=above_peak, limit=limit)
    show(view.document(found), as_json, lambda console: view.print_figures(console, found))
