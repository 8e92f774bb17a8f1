"""Which settings of a network draw how much power, and which of them does no other beat?

A setting is on the *Pareto front* where no other is at least as fast for as little power. Settings
are compared within one network and one coverage: the power of a GPU's board is never held against
that of packages and DRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cubemesh.experiments.analysis.groups import Group
from cubemesh.schema import Figure, NetworkWork, RunRecord


@dataclass(frozen=True, order=True)
class Key:
    """One setting of a network."""

    network: str
    batch: int
    precision: str
    threads: int | None

    @property
    def words(self) -> str:
        """`minibatch 64, fp32`."""
        return f"minibatch {self.batch}, {self.variant}"

    @property
    def variant(self) -> str:
        """What differs beside the minibatch: `fp32`, `fp32, 2 threads`."""
        if self.threads is None:
            return self.precision
        return f"{self.precision}, {self.threads} {'thread' if self.threads == 1 else 'threads'}"


def key_of(record: RunRecord) -> Key:
    """The setting that a record is of."""
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    return Key(
        network=work.network,
        batch=work.batch_per_device,
        precision=record.spec.program.precision,
        threads=record.spec.placement.threads or _threads_of(record),
    )


def _threads_of(record: RunRecord) -> int | None:
    """What "all cores" became on a CPU; on a GPU it says nothing about the speed."""
    on_cpu = (rank.threads for rank in record.ranks if rank.device == "cpu")
    return next(on_cpu, None)


@dataclass(frozen=True)
class PowerPoint:
    """A setting with its performance and its power."""

    group: Group[Key]
    throughput: Figure
    watts: float
    covered: str
    """Which parts of the machine the power is of."""

    @property
    def joules(self) -> float:
        """Of a sample."""
        return self.watts / self.throughput.value


def measured(group: Group[Key]) -> PowerPoint | None:
    """None where the setting has no throughput or no power."""
    throughput, watts = group.throughput, group.median_of("mean_power_watts")
    if throughput is None or not watts:
        return None
    figures = (r.figures.get("mean_power_watts") for r in group.ok)
    covered = next(f.method for f in figures if f is not None)
    return PowerPoint(group, throughput, watts, covered)


def pareto_front(settings: Sequence[PowerPoint]) -> list[PowerPoint]:
    """Those that no other matches in speed for as little power, from the least power up."""
    best: list[PowerPoint] = []
    for one in sorted(settings, key=lambda m: (m.watts, -m.throughput.value)):
        if not best or one.throughput.value > best[-1].throughput.value:
            best.append(one)
    return best


@dataclass(frozen=True)
class PowerData:
    """Everything that was measured, by setting."""

    groups: tuple[Group[Key], ...]

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """In the order they came."""
        return tuple(dict.fromkeys(g.key.network for g in self.groups))

    @cached_property
    def measured(self) -> tuple[PowerPoint, ...]:
        """The settings whose power is known, of one coverage: that of the most of them."""
        found = [m for g in self.groups if (m := measured(g)) is not None]
        kinds = [m.covered for m in found]
        usual = max(dict.fromkeys(kinds), key=kinds.count, default="")
        return tuple(m for m in found if m.covered == usual)

    def of(self, network: str) -> list[PowerPoint]:
        """The settings of a network whose power is known."""
        return [m for m in self.measured if m.group.key.network == network]

    @cached_property
    def on_front(self) -> frozenset[Key]:
        """The settings on the fronts of their networks."""
        return frozenset(m.group.key for n in self.networks for m in pareto_front(self.of(n)))
