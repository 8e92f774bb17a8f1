"""Network design of a cluster: switches, ports, bisection bandwidth, latency, training throughput.

Nothing is measured: a fat tree, or the dragonfly of Cray Aries, is laid out for each number of
systems and each network (machines/topology/fat_tree.py and dragonfly.py have the formulas and their
sources), and training on it is forecast (throughput.py). DGX-1 V100 white paper [002], table 1 and
figure 8: 124 systems with four EDR ports, on leaf switches of four systems with as many links up as
down. Gawande et al. 2018 [004], section 2.2: an oversubscribed tree, and a dragonfly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cubemesh import networks
from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.cluster import report, throughput
from cubemesh.experiments.cluster.report import design_name, tree
from cubemesh.experiments.cluster.throughput import ClusterJob
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.topology import NETWORKS, Design
from cubemesh.machines.topology.fat_tree import MOST_OVERSUBSCRIPTION
from cubemesh.schema import Answer, RunRecord
from cubemesh.schema.spec import Precision


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `cluster`."""

    system: str = "dgx1-v100"
    """System of the cluster: one of the catalogue, or a machine file."""
    system_counts: tuple[int, ...] = (16, 32, 64, 124, 128, 129, 144, 145)
    """Numbers of systems."""
    fabrics: tuple[str, ...] = ("edr:4", "10gbe:2")
    """Networks to compare, each with its ports per system, and links down for each link up where
    its tree is oversubscribed (`omni-path:1:5/4`); the first is laid out in full."""
    switch_ports: int | None = None
    """Ports per switch of the first network; default: those of its usual switch."""
    ports_used: tuple[int, ...] = (32, 36)
    """Maximum ports used per switch of the first network, one design each."""
    links_between_groups: int | None = None
    """Links between every two groups of a dragonfly; default: as many as its routers have."""
    compared_at: int = 124
    """Number of systems at which the networks are compared."""
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
                raise UsageError(f"{count} systems: a cluster needs at least 1.")
        if self.links_between_groups is not None and self.links_between_groups < 1:
            raise UsageError(
                f"links_between_groups={self.links_between_groups}: it must be 1 or more."
            )
        for text in self.fabrics:
            fabric(text)
        for network in self.networks:
            networks.entry(network)
        if min(self.batch_sizes, default=1) < 1 or not 1 <= self.max_devices <= 1 << 20:
            raise UsageError("batch_sizes must be at least 1, max_devices between 1 and 2**20.")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise UsageError(f"rate={self.rate} must be a number of samples/s above 0.")
        designs(self)


def fabric(
    text: str,
    *,
    switch_ports: int | None = None,
    used: int | None = None,
    links_between_groups: int | None = None,
) -> Design:
    """The design of "edr:4" or "omni-path:1:5/4": a network, its ports per system, and how far it
    is oversubscribed. UsageError if invalid; `links_between_groups` is for dragonflies."""
    name, ports, ratio = (*text.strip().split(":", 2), "", "")[:3]
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS, "Write NETWORK:PORTS, as in edr:4.")
    if not ports.isdecimal() or not 1 <= int(ports[:4]) <= 64:
        raise UsageError(
            f"fabrics={text}: write NETWORK:PORTS with 1 to 64 ports per system, as in {name}:4."
        )
    network = NETWORKS[name]
    return Design(
        network=network,
        ports_per_system=int(ports),
        switch_ports=switch_ports or network.switch_ports,
        ports_used=used,
        oversubscription=_oversubscription(text, ratio),
        links_between_groups=None if network.dragonfly is None else links_between_groups,
    )


def _oversubscription(text: str, ratio: str) -> float:
    """Links down for each link up: 1.25 of "5/4"; 1 of an empty text."""
    if not ratio:
        return 1.0
    try:
        found = float(Fraction(ratio[:20]))
    except (ValueError, ZeroDivisionError):
        found = 0.0
    if not 1 <= found <= MOST_OVERSUBSCRIPTION:
        raise UsageError(
            f"fabrics={text}: '{ratio[:20]}' must be links down over links up, as in 5/4, from 1 "
            f"to {MOST_OVERSUBSCRIPTION}."
        )
    return found


def designs(settings: Settings) -> tuple[Design, ...]:
    """Designs of the first network: one for each of `ports_used`; one of a dragonfly."""
    first, links = settings.fabrics[0], settings.links_between_groups
    whole = fabric(first, switch_ports=settings.switch_ports, links_between_groups=links)
    if whole.network.dragonfly is not None:
        return (whole,)
    used = [n for n in settings.ports_used if n <= whole.switch_ports] or [whole.switch_ports]
    return tuple(
        fabric(first, switch_ports=settings.switch_ports, used=n) for n in dict.fromkeys(used)
    )


def fabrics(settings: Settings) -> list[Design]:
    """The designs to compare: of the first network the one with the fewest ports used."""
    fewest = min(designs(settings), key=lambda design: design.usable)
    links = settings.links_between_groups
    others = (fabric(text, links_between_groups=links) for text in settings.fabrics[1:])
    return [fewest, *others]


def plan(settings: Settings, context: Context) -> Plan:
    """Nothing is measured; checks that the system is known."""
    load_system(settings.system)
    yield from ()


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the settings alone."""
    system = load_system(settings.system)
    laid_out = designs(settings)
    by_name = {design_name(design): design for design in fabrics(settings)}
    compared = {name: tree(settings.compared_at, design) for name, design in by_name.items()}
    jobs = [
        ClusterJob(
            network=networks.canonical_name(network),
            batch_per_device=batch,
            precision=precision,
            rate=settings.rate,
            max_devices=settings.max_devices,
        )
        for network in dict.fromkeys(settings.networks)
        for batch in dict.fromkeys(settings.batch_sizes)
        for precision in dict.fromkeys(settings.precisions)
    ]
    single = replace(system, cluster=None)
    forecasts = [(throughput.forecasts(single, by_name, job), job) for job in jobs]
    return answer_of(
        EXPERIMENT,
        f"Clusters of {system.title} on {report.shape_names(by_name.values())}",
        records,
        findings=(
            *report.findings(laid_out, compared),
            *(finding for f, job in forecasts for finding in throughput.findings(f, job)),
        ),
        tables=(
            report.comparison(settings.compared_at, compared),
            *(report.sizes(settings.system_counts, d, system.devices) for d in laid_out),
            *(throughput.table(f, job) for f, job in forecasts),
        ),
        charts=(
            report.chart(settings.system_counts, by_name),
            *(throughput.chart(f, job, several=len(jobs) > 1) for f, job in forecasts),
        ),
        notes=report.notes(laid_out[0], compared),
    )


EXPERIMENT = Experiment(
    name="cluster",
    question="What does a cluster need, and what is its bisection bandwidth?",
    settings=Settings,
    works=(),
    varies={},
    plan=plan,
    answer=answer,
    measures=False,
    papers="[002], table 1 and figure 8",
)
