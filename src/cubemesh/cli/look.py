"""The verbs that show what there is: this machine, networks, experiments, published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, show


def probe(
    file: Annotated[
        Path | None,
        typer.Argument(help="Where --draw writes.", show_default="cubemesh-topology.svg"),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="NAME|FILE",
            help="A system of the catalogue, or of a .toml, .xml (NCCL) or .txt (topo -m) file.",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Write the topology and its rings as SVG.")
    ] = False,
    gpus: Annotated[
        str | None, typer.Option(metavar="0,1,…", help="Only these GPUs of the topology.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What this machine is, or another: processors, GPUs, links. Also what cannot be found out."""
    from cubemesh.views import systems

    plain, drawn = systems.probed(machine, file, draw=draw, gpus=gpus)
    show(plain, as_json, drawn)


def networks(
    name: Annotated[str | None, typer.Argument(help="Show this one layer by layer.")] = None,
    as_json: AsJson = False,
) -> None:
    """The networks that can be trained. With a name, its layers and what they cost."""
    from cubemesh.views import catalogue

    plain, table = catalogue.networks() if name is None else catalogue.network(name)
    show(plain, as_json, table)


def experiments(
    name: Annotated[str | None, typer.Argument(help="Show this one's settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """The questions that can be asked. With a name, everything that can be set in it."""
    from cubemesh.views import catalogue

    plain, table = catalogue.experiments() if name is None else catalogue.experiment(name)
    show(plain, as_json, table)


def published(
    network: Annotated[str | None, typer.Argument(help="Only figures of this network.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Only devices whose name holds this text.")
    ] = None,
    above_peak: Annotated[
        bool, typer.Option("--above-peak", help="Only figures above their device's peak.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Show so many, the first ones.")] = None,
    as_json: AsJson = False,
) -> None:
    """What others published. Beside each figure: how much of its device's peak that is."""
    from cubemesh.views.published import published as shown

    plain, table = shown(network, device, above_peak=above_peak, limit=limit)
    show(plain, as_json, table)
