"""`cubemesh networks` and `cubemesh export`."""

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


def export(
    network: Annotated[
        str | None,
        typer.Argument(
            help="Network; `cubemesh networks` lists them. With --checkpoints theirs.",
            autocompletion=completion.networks,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: NETWORK.onnx.")
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Take the weights of this training's checkpoints."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of the checkpoint after this step; default: newest.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Height and width of the images in pixels.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Number of classes.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the weights, without --checkpoints.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a network and its weights as an ONNX file."""
    from cubemesh import export_network
    from cubemesh.views import catalogue as view

    done = export_network(
        network,
        output,
        checkpoints=checkpoints,
        step=step,
        image_size=image_size,
        classes=classes,
        seed=seed,
    )
    show(view.export_document(done), as_json, lambda c: view.print_export(c, done))
