"""Systems and their topologies in a terminal and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.probe import SystemTopology
from cubemesh.untrusted import clean
from cubemesh.views import terminal
from cubemesh.views.facts.equipment import equipment_json
from cubemesh.views.facts.topology import (
    cluster_facts,
    cluster_json,
    cluster_shape,
    link_table,
    ring_table,
    system_facts,
    topology_facts,
    topology_json,
)
from cubemesh.views.json_output import envelope


def document(found: SystemTopology, drawing: Path | None = None) -> dict[str, Any]:
    """The JSON of `cubemesh probe --machine` and `--draw`; `drawing` is the file it is drawn to."""
    system, topology = found.system, topology_json(found.analysis)
    place = None if drawing is None else str(drawing)
    if system is None:
        return envelope("drawing", drawing=place, topology=topology)
    return envelope(
        "system",
        name=system.name,
        title=system.title,
        sources=list(system.sources),
        facts=dict(system.facts),
        device=system.device,
        devices=system.devices,
        network=system.network,
        ports=system.ports,
        equipment=equipment_json(system),
        topology=topology,
        cluster=None if system.cluster is None else cluster_json(system.cluster),
        drawing=place,
    )


def print_system(console: Console, found: SystemTopology, drawing: Path | None = None) -> None:
    """The facts of the system, its links, its rings, and where it was drawn to."""
    system = found.system
    if system is not None:
        console.print(Text(clean(system.title), style="bold"), soft_wrap=True)
        terminal.print_facts(console, system_facts(system))
        if system.cluster is not None:
            shape = cluster_shape(system.cluster)
            terminal.print_section(console, f"Cluster ({shape})", cluster_facts(system.cluster))
        console.print()
    terminal.print_table(console, link_table(found.topology))
    if found.analysis.rings.rings:
        console.print()
        terminal.print_table(console, ring_table(found.analysis))
    console.print()
    terminal.print_facts(console, topology_facts(found.analysis))
    notes = [("note", note) for note in found.topology.notes]
    if drawing is not None:
        notes.append(("drawing", str(drawing)))
    terminal.print_facts(console, notes)
