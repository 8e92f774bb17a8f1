"""Roofline: each layer's arithmetic intensity and performance against the device's limits.

The roofline model (S. Williams, A. Waterman, D. Patterson, CACM 52(4), 2009): a layer that does f
operations and moves b bytes in t seconds is at x = f / b, y = f / t. The roof is the lower of
the rate of a matrix product and x times that of a copy. Operations and bytes are those of forward
pass, data gradient and weight gradient together, every operand read once and every result written
once (`networks/cost.py`); a fused or cached layer moves fewer and may be above the roof.

What a layer *loses* is its time less its floor, the least that its passes take under the roof
(`passes.py`). Both
rates are measured on the device, not from a datasheet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cubemesh.forecast.passes import roofline_s
from cubemesh.forecast.utilization import Limits
from cubemesh.networks import build_for
from cubemesh.networks.cost import costs
from cubemesh.networks.flops import LayerCost
from cubemesh.networks.graph import Network
from cubemesh.schema.record import RunRecord
from cubemesh.schema.spec import Precision
from cubemesh.schema.work import NetworkWork, TrainSteps

LAYER = "layer"
"""Name of the breakdown that has the time of each layer."""


@dataclass(frozen=True, kw_only=True)
class LayerPoint:
    """One layer in a training step."""

    layer: str
    category: str
    """`convolution`, `pooling`, …"""
    flops: int
    moved_bytes: int
    seconds: float
    floor_s: float | None
    """The least it takes under the roof; None without one."""

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        """Operations a second."""
        return self.flops / self.seconds

    @property
    def lost_s(self) -> float:
        """Seconds above the floor; all of them without one, none where it is below."""
        return max(0.0, self.seconds - (self.floor_s or 0.0))


def layer_points(
    network: Network,
    batch: int,
    layer_s: Mapping[str, float],
    roof: Limits,
    precision: Precision = "fp32",
) -> tuple[LayerPoint, ...]:
    """The layers of `network` that `layer_s` has a time for (seconds of a step, forward and
    backward), those that lose most first. Layers that compute nothing have no place."""
    counted = costs(network, batch, precision)
    points = []
    for node in network.nodes:
        cost, seconds = counted[node.name], layer_s.get(node.name, 0.0)
        total = cost.total
        if seconds > 0 and total.flops and total.moved_bytes:
            points.append(
                LayerPoint(
                    layer=node.name,
                    category=node.layer.category,
                    flops=total.flops,
                    moved_bytes=total.moved_bytes,
                    seconds=seconds,
                    floor_s=_floor_s(cost, roof),
                )
            )
    return tuple(sorted(points, key=lambda point: -point.lost_s))


def points_of(record: RunRecord, roof: Limits) -> tuple[LayerPoint, ...]:
    """The same for a record of training steps with timed layers; None for others."""
    work = record.spec.work
    seconds = {
        row.name: row.seconds for b in record.breakdowns if b.name == LAYER for row in b.rows
    }
    if not isinstance(work, TrainSteps) or not seconds:
        return ()
    assert isinstance(work, NetworkWork)
    precision = record.spec.program.precision
    return layer_points(build_for(work), work.batch_per_device, seconds, roof, precision)


def measured_roof(record: RunRecord) -> Limits:
    """The ceilings used for a record's utilization; empty if unknown."""

    def limit(name: str, share: str) -> float | None:
        value, percent = record.figure(name), record.figure(share)
        return 100 * value / percent if value and percent else None

    return Limits(
        flops_per_s=limit("model_flops_per_s", "ceiling_mfu_percent"),
        bytes_per_s=limit("model_bytes_per_s", "ceiling_memory_use_percent"),
        flops_source="measured",
        bytes_source="measured",
    )


def _floor_s(cost: LayerCost, roof: Limits) -> float | None:
    if roof.flops_per_s is None or roof.bytes_per_s is None:
        return None
    passes = (cost.forward, cost.data_gradient, cost.weight_gradient)
    return roofline_s(passes, roof.flops_per_s, roof.bytes_per_s)
