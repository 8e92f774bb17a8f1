"""`cubemesh probe` and `cubemesh doctor`: this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, show, whole_numbers
from cubemesh.errors import UsageError

DRAWING = Path("cubemesh-topology.svg")


def probe(
    file: Annotated[
        Path | None, typer.Argument(help="File that --draw writes.", show_default=str(DRAWING))
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="NAME|FILE",
            help="A system of the catalogue, or a .toml, .xml (NCCL) or .txt (topo -m) file.",
            autocompletion=completion.systems,
        ),
    ] = None,
    draw: Annotated[
        bool,
        typer.Option(
            "--draw", help="Draw the topology and its rings; FILE ends in .svg, .png or .txt."
        ),
    ] = False,
    gpus: Annotated[
        str | None, typer.Option(metavar="0,1,…", help="Only these GPUs of the topology.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the hardware of this machine. With --machine or --draw, the topology of a system."""
    from cubemesh.api.probe import probe as probe_machine
    from cubemesh.api.probe import topology
    from cubemesh.views import systems, terminal
    from cubemesh.views.json_output import machine_json
    from cubemesh.views.topology.files import check_path, write_topology

    if file is not None and not draw:
        raise UsageError(f"{file}: a file is only written with --draw; to read one use --machine.")
    if file is not None:
        check_path(file)
    if machine is None and not draw:
        if gpus is not None:
            raise UsageError("--gpus selects GPUs of a topology: add --draw or --machine.")
        found = probe_machine()
        show(machine_json(found), as_json, lambda c: terminal.print_machine(c, found))
        return
    system = topology(machine, gpus=None if gpus is None else whole_numbers("--gpus", gpus))
    drawing = (file or DRAWING) if draw else None
    if drawing is not None:
        write_topology(drawing, system)
    show(
        systems.document(system, drawing),
        as_json,
        lambda console: systems.print_system(console, system, drawing),
    )


def doctor(as_json: AsJson = False) -> None:
    """Check the installation and this machine. Each problem has the command that mends it."""
    from cubemesh.api.doctor import doctor as diagnose
    from cubemesh.views import doctor as view

    found = diagnose()
    show(view.document(found), as_json, lambda console: view.print_diagnosis(console, found))
