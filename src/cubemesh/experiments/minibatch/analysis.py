"""Throughput by batch size of one network: its data, the knee, and the fraction of matmul peak.

The *knee* is the smallest batch size within 3 % of the best throughput. *Matmul use* is the
network's matrix FLOPs per second (a multiply-add is two) over the fastest matrix product measured
on the same device in the same precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.experiments.core.passes import PASSES, Pass
from cubemesh.experiments.minibatch.curvature import Curvature, curvatures
from cubemesh.experiments.minibatch.input_bound import DataLocations
from cubemesh.networks import build_for, rate_unit
from cubemesh.networks.cost import totals
from cubemesh.schema import (
    Ceiling,
    Figure,
    NetworkWork,
    RunRecord,
    TrainSteps,
    Warning,
    warn,
)

KNEE_FRACTION = 0.97
"""Fraction of the best throughput that defines the knee."""
BatchGroups = Sequence[Group[int]]
"""Groups of records by batch size."""


@dataclass(frozen=True, kw_only=True)
class MinibatchData:
    """What was measured of one network at each batch size."""

    network: str
    training: BatchGroups
    """Data on the requested location; on the host if both were requested."""
    device: BatchGroups = ()
    """Data on the device, if both were requested."""
    passes: Mapping[Pass, BatchGroups] = field(default_factory=dict)
    """The other passes that were timed."""
    rate: float | None = None
    """The fastest matrix product, FLOP/s, of all devices together."""
    devices: int = 1

    @property
    def unit(self) -> str:
        """The unit of throughput."""
        return rate_unit(self.network)

    @property
    def measured(self) -> list[tuple[Group[int], Figure]]:
        """The groups that have a throughput."""
        return [(g, f) for g in self.training if (f := g.throughput) is not None]

    @property
    def knee(self) -> tuple[Group[int], Figure]:
        """The smallest batch size within 3 % of the best; ValueError if nothing was measured."""
        top = max(f.value for _, f in self.measured)
        return next(p for p in self.measured if p[1].value >= KNEE_FRACTION * top)

    @cached_property
    def curvatures(self) -> list[Curvature]:
        """The curvature at each batch size that has both neighbours."""
        return curvatures(self.training, self.unit)

    def matmul_fraction(self, group: Group[int], figure: Figure) -> float:
        """Matrix FLOPs per second of training over the fastest matrix product."""
        work = group.records[0].spec.work
        assert isinstance(work, NetworkWork)
        assert self.rate
        flops = totals(build_for(work), group.key).total.matrix_flops
        return flops / group.key * figure.value / self.rate


def minibatch_data(
    network: str, records: Sequence[RunRecord], location: DataLocations
) -> MinibatchData:
    """The timed `records` of `network`, and of the ceiling, by batch size."""

    def by_batch(kind: type[NetworkWork], locations: tuple[str, ...]) -> BatchGroups:
        own = (
            r
            for r in records
            if isinstance(r.spec.work, kind) and r.spec.program.data_location in locations
        )
        groups = group_by(own, lambda r: r.spec.batch_per_device or 0)
        return sorted(groups, key=lambda group: group.key)

    both = location == "both"
    ceiling = group_by((r for r in records if isinstance(r.spec.work, Ceiling)), lambda r: "")
    rate = ceiling[0].median_of("rate_flops_per_s") if ceiling else None
    devices = max((r.spec.placement.devices for r in records), default=1)
    return MinibatchData(
        network=network,
        training=by_batch(TrainSteps, ("host",) if both else ("host", "device")),
        device=by_batch(TrainSteps, ("device",)) if both else (),
        passes={
            name: groups
            for name, kind in PASSES.items()
            if name != "training" and (groups := by_batch(kind.work, ("host", "device")))
        },
        rate=None if rate is None else rate * devices,
        devices=devices,
    )


def above_ceiling(data: MinibatchData) -> Iterator[Warning]:
    """A warning if training exceeded the fastest matrix product: one of the two figures is wrong,
    or the convolutions use a fast algorithm."""
    if not data.rate or not data.measured:
        return
    fraction, worst = max((data.matmul_fraction(g, f), g.key) for g, f in data.measured)
    if fraction > 1:
        yield warn(
            "above-ceiling",
            f"{data.network} at batch size {worst} reaches {100 * fraction:.0f} % of the fastest "
            "matrix product: convolutions of 3×3 and more can use Winograd or FFT algorithms, "
            "which need fewer operations than are counted.",
            "Use it to compare rows, not as an absolute value.",
        )
