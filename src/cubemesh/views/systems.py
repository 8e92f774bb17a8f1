"""What does `cubemesh probe` say about a system: this machine, one of the catalogue, or a file's?

Gives plain data for --json and a function that prints the same for people; and writes the drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cubemesh.errors import DataError, UsageError
from cubemesh.machines import probe
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.topology import Topology
from cubemesh.machines.topology.probed import topology_of
from cubemesh.views import terminal
from cubemesh.views.facts.topology import (
    Seen,
    cluster_facts,
    cluster_plain,
    link_table,
    ring_table,
    system_facts,
)
from cubemesh.views.json_output import envelope, machine_json

Shown = tuple[dict[str, Any], Callable[[Console], None]]


DRAWING = Path("cubemesh-topology.svg")
"""Where a drawing goes that no place is named for."""


def probed(machine: str | None, file: Path | None, *, draw: bool, gpus: str | None) -> Shown:
    """What `cubemesh probe` shows; UsageError for options that do not go together."""
    if file is not None and not draw:
        raise UsageError(f"{file}: a file is written with --draw only; to read one: --machine.")
    drawing = (file or DRAWING) if draw else None
    if machine is None:
        return this_machine(drawing, gpus)
    return named(machine, drawing, gpus)


def this_machine(drawing: Path | None, gpus: str | None) -> Shown:
    """What the probe found; the drawing of its GPUs is written where one is asked for."""
    machine = probe()
    if drawing is None:
        if gpus is not None:
            raise UsageError("--gpus chooses what is drawn: give it with --draw or --machine.")
        return machine_json(machine), lambda console: terminal.print_machine(console, machine)
    seen = Seen(_chosen(topology_of(machine), gpus))
    _write(drawing, seen.draw(title=machine.hostname))
    plain = envelope("drawing", drawing=str(drawing), topology=seen.plain())
    return plain, lambda console: _print_topology(console, seen, drawing)


def named(machine: str, drawing: Path | None, gpus: str | None) -> Shown:
    """A system of the catalogue or of a file, with its rings; drawn where that is asked for."""
    system = load_system(machine)
    system = replace(system, topology=_chosen(system.topology, gpus))
    seen = Seen(system.topology)
    if drawing is not None:
        _write(drawing, seen.draw(title=system.title))
    plain = envelope(
        "system",
        name=system.name,
        title=system.title,
        sources=list(system.sources),
        facts=dict(system.facts),
        device=system.device,
        devices=system.devices,
        network=system.network,
        ports=system.ports,
        topology=seen.plain(),
        cluster=None if system.cluster is None else cluster_plain(system.cluster),
        drawing=None if drawing is None else str(drawing),
    )
    return plain, lambda console: _print_system(console, system, seen, drawing)


def _chosen(topology: Topology, gpus: str | None) -> Topology:
    """The topology with the GPUs of a text like "0,1,2" or "0-3" alone."""
    if gpus is None:
        return topology
    numbers: list[int] = []
    for part in gpus.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 12:
            raise UsageError(f"--gpus {gpus}: give numbers, as in --gpus 0,1,4 or --gpus 0-3.")
        end = int(last) if dash else int(first)
        if not 0 <= end - int(first) < 1000:
            raise UsageError(f"--gpus {gpus}: {part} is no range of GPUs.")
        numbers += range(int(first), end + 1)
    if not topology.gpus:
        raise UsageError(f"--gpus {gpus}: {topology.name} has no GPUs.")
    return topology.subset(numbers)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _print_system(console: Console, system: System, seen: Seen, drawing: Path | None) -> None:
    terminal.print_heading(console, system.title, first=True)
    terminal.print_facts(console, system_facts(system))
    if system.cluster is not None:
        console.print()
        terminal.print_heading(console, "Cluster, as a fat tree")
        terminal.print_facts(console, cluster_facts(system.cluster))
    console.print()
    _print_topology(console, seen, drawing)


def _print_topology(console: Console, seen: Seen, drawing: Path | None) -> None:
    terminal.print_table(console, link_table(seen.topology))
    if seen.rings.rings:
        console.print()
        terminal.print_table(console, ring_table(seen))
    console.print()
    terminal.print_facts(console, seen.facts())
    notes = [("note", note) for note in seen.topology.notes]
    if drawing is not None:
        notes.append(("drawing", str(drawing)))
    terminal.print_facts(console, notes)
