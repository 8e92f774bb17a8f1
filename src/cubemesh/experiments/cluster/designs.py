"""What can be set in `cluster`, and the fat trees that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh import networks
from cubemesh.errors import UsageError, unknown_name
from cubemesh.machines.topology import NETWORKS, Design, FatTree, fat_tree
from cubemesh.schema.spec import Precision


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `cluster`."""

    system: str = "dgx1-v100"
    """What is joined: a system of the catalogue, or a machine file. It tells the devices."""
    system_counts: tuple[int, ...] = (16, 32, 64, 124, 128, 129, 144, 145)
    """How many of them."""
    fabrics: tuple[str, ...] = ("edr:4", "10gbe:2")
    """Networks to compare, each with its ports of one system; the first is laid out in full."""
    switch_ports: int | None = None
    """Ports of one switch of the first network; unset, those of its usual switch."""
    ports_used: tuple[int, ...] = (32, 36)
    """Ports used at most of a switch of the first network, one design each."""
    compared_at: int = 124
    """Systems at which the networks are compared."""
    networks: tuple[str, ...] = ("resnet-50",)
    """Neural networks whose training throughput is forecast."""
    batch_sizes: tuple[int, ...] = (64,)
    """Batch sizes per device."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions to train in."""
    rate: float | None = None
    """Measured samples/s of one device; default: estimated from its datasheet."""
    max_devices: int = 1024
    """Largest number of devices to forecast."""

    def __post_init__(self) -> None:
        if not self.system_counts or not self.fabrics:
            raise UsageError("system_counts and fabrics need at least one entry each.")
        for count in (*self.system_counts, self.compared_at):
            if count < 1:
                raise UsageError(f"{count} systems: a cluster needs 1 or more.")
        for text in self.fabrics:
            fabric(text)
        for network in self.networks:
            networks.entry(network)
        if min(self.batch_sizes, default=1) < 1 or not 1 <= self.max_devices <= 1 << 20:
            raise UsageError("batch_sizes must be at least 1, max_devices between 1 and 2**20.")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise UsageError(f"rate={self.rate}: samples per second are above 0.")
        designs(self)


def fabric(text: str, *, switch_ports: int | None = None, used: int | None = None) -> Design:
    """The design of "edr:4": a network, and its ports of each system; UsageError for others."""
    name, _, ports = text.strip().partition(":")
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS, "Write it with its ports: edr:4.")
    if not ports.isdecimal() or not 1 <= int(ports[:4]) <= 64:
        raise UsageError(
            f"fabrics={text}: after the network stand its ports of one system, 1 to 64, as in "
            f"{name}:4."
        )
    network = NETWORKS[name]
    return Design(
        network=network,
        ports_per_system=int(ports),
        switch_ports=switch_ports or network.switch_ports,
        ports_used=used,
    )


def designs(settings: Settings) -> tuple[Design, ...]:
    """The designs of the first network: one for each number of ports that may be used."""
    first = settings.fabrics[0]
    whole = fabric(first, switch_ports=settings.switch_ports)
    used = [n for n in settings.ports_used if n <= whole.switch_ports] or [whole.switch_ports]
    return tuple(
        fabric(first, switch_ports=settings.switch_ports, used=n) for n in dict.fromkeys(used)
    )


def fabrics(settings: Settings) -> list[Design]:
    """The designs that are compared: of the first network the one with the fewest ports used."""
    fewest = min(designs(settings), key=lambda design: design.usable)
    return [fewest, *(fabric(text) for text in settings.fabrics[1:])]


def named(design: Design) -> str:
    """What a design is called."""
    return f"{design.ports_per_system} × {design.network.name}"


def tree(systems: int, design: Design) -> FatTree | str:
    """The fat tree, or why there is none."""
    try:
        return fat_tree(systems, design)
    except UsageError as error:
        return str(error)
