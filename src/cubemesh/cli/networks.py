"""`cubemesh networks`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, show


def networks(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List the layers of this network.",
            autocompletion=completion.networks,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the networks that can be trained. With a name, its layers and their costs."""
    from cubemesh import list_networks, network_layers
    from cubemesh.views import catalogue as view

    if name is None:
        found = list_networks()
        show(view.networks_document(found), as_json, lambda c: view.print_networks(c, found))
        return
    one = network_layers(name)
    show(view.network_document(one), as_json, lambda c: view.print_network(c, one))
