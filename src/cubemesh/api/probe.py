"""Machines: hardware and software of this one, and topologies of this or of a described system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from cubemesh.api.arguments import open_store
from cubemesh.errors import DataError, UsageError
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.files import read_text
from cubemesh.machines.probe import probe
from cubemesh.machines.stack import StackDifference, stack_differences
from cubemesh.machines.topology.analysis import TopologyAnalysis
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.probed import topology_of
from cubemesh.schema import Machine
from cubemesh.schema.serialization import from_plain
from cubemesh.store.store import Store
from cubemesh.untrusted import parse_json, quoted, shown_path

__all__ = ["StackComparison", "SystemTopology", "compare_stacks", "probe", "topology"]

MAX_PROBE_BYTES = 16 << 20
_SQLITE = b"SQLite format 3\x00"


@dataclass(frozen=True, kw_only=True)
class SystemTopology:
    """The topology of a system, with its rings, bisection and broadcast."""

    title: str
    system: System | None
    """What the catalogue or a file has; null for this machine."""
    analysis: TopologyAnalysis

    @property
    def topology(self) -> Topology:
        """Devices and links."""
        return self.analysis.topology


def topology(system: str | None = None, *, gpus: Sequence[int] | None = None) -> SystemTopology:
    """The topology of this machine, or of a system: its name in the catalogue, or a .toml, .xml
    (NCCL) or .txt (`nvidia-smi topo -m`) file. `gpus` restricts it to these GPUs.

    UsageError for an unknown name or GPU, DataError for a file or a machine without a topology.
    """
    if system is None:
        machine = probe()
        found, title, graph = None, machine.hostname, topology_of(machine)
    else:
        found = load_system(system)
        title, graph = found.title, found.topology
    if gpus is not None:
        if not graph.gpus:
            raise UsageError(f"{graph.name} has no GPUs to choose from.")
        graph = graph.subset(gpus)
    if found is not None:
        found = replace(found, topology=graph)
    return SystemTopology(title=title, system=found, analysis=TopologyAnalysis(graph))


@dataclass(frozen=True, kw_only=True)
class StackComparison:
    """The software stack of this machine, and a recorded one."""

    own: Machine
    recorded: Machine
    source: str
    """The file or store of the recorded one."""
    differences: tuple[StackDifference, ...]
    """The recorded one first."""

    @property
    def same_hardware(self) -> bool:
        """Whether both are of one machine."""
        return self.own.machine_id == self.recorded.machine_id


def compare_stacks(
    against: str | os.PathLike[str], *, machine_id: str = "", own: Machine | None = None
) -> StackComparison:
    """What differs between the stack of this machine and a recorded one: system, kernel, driver,
    CUDA, packages, instruction sets, environment variables.

    `against` is a file of `cubemesh probe --json`, or a store. Of a store it is the last stack of
    `machine_id` (an id or unique prefix), else that of this machine, else its only machine. `own`
    replaces the probe of this machine. DataError for a file or store that cannot be read,
    UsageError where the store has several machines and no one is chosen.
    """
    here = own or probe()
    source = os.fspath(against)
    if _is_file_of_text(source):
        if machine_id:
            raise UsageError(f"{source} is one machine: machine_id belongs to a store.")
        recorded = _probed_machine(Path(source))
    else:
        with open_store(source, reading=True) as store:
            recorded = _stored_machine(store, machine_id, here, source)
    return StackComparison(
        own=here,
        recorded=recorded,
        source=source,
        differences=stack_differences(recorded, here),
    )


def _is_file_of_text(source: str) -> bool:
    try:
        with open(source, "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:
            return file.read(len(_SQLITE)) != _SQLITE
    except (OSError, ValueError):
        return False


def _probed_machine(path: Path) -> Machine:
    """The machine in the output of `cubemesh probe --json`; DataError where it is not one."""
    text = read_text(path, MAX_PROBE_BYTES, "probe")
    try:
        document = parse_json(text)
    except ValueError as error:
        raise DataError(f"{shown_path(path)} is not JSON: {error}.") from None
    if not isinstance(document, dict) or document.get("kind") != "machine":
        raise DataError(
            f"{shown_path(path)} is not output of `cubemesh probe --json`, nor a store."
        )
    names = {one.name for one in fields(Machine)}
    try:
        return from_plain(Machine, {k: v for k, v in document.items() if k in names})
    except ValueError as error:
        raise DataError(f"{shown_path(path)} is damaged: {error}.") from None


def _stored_machine(store: Store, machine_id: str, own: Machine, source: str) -> Machine:
    machines = store.machines()
    wanted = machine_id or own.machine_id
    found = [m for m in machines if m.machine_id.startswith(wanted)]
    if not found and not machine_id and len(machines) == 1:
        found = machines
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{m.machine_id} ({m.hostname})" for m in machines[:10]) or "none"
    why = f"no machine {quoted(machine_id)}" if machine_id else "several machines, but not this one"
    if len(found) > 1:
        why = f"{len(found)} machines that begin with {quoted(wanted)}"
    elif not machines:
        why = "no machine"
    raise UsageError(f"The store {source} has {why}. Choose one with --machine-id: {known}.")
