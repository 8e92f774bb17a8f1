"""Ideal time of a training step on a device (roofline), and the efficiency reached.

The roofline model (S. Williams, A. Waterman, D. Patterson, Communications of the ACM 52(4), 2009),
layer by layer and pass by pass: a piece of work takes at least the longer of

    matrix operations / measured rate of a matrix product
    bytes moved       / measured rate of a copy

and a step takes at least the sum over its pieces, since each must end before the next begins. Both
rates are measured on the device, not taken from a datasheet. The bytes are those of
`networks/cost.py`, every operand read once and every result written once: a program that fuses
layers or keeps values in a cache can be faster than the memory side says, and one that uses a fast
algorithm (Winograd, FFT) faster than the operations say. The update of the weights is left out.
"""

from __future__ import annotations

from cubemesh.networks.cost import costs, totals
from cubemesh.networks.flops import LayerCost
from cubemesh.networks.graph import Network
from cubemesh.schema.cost import Cost
from cubemesh.schema.spec import Precision


def floor_s(
    network: Network,
    batch: int,
    rate_flops_per_s: float,
    copy_bytes_per_s: float | None = None,
    precision: Precision = "fp32",
) -> float:
    """Least seconds of a training step (forward, backward) on `batch` samples.

    `rate_flops_per_s` is the measured ceiling of matrix products in `precision`,
    `copy_bytes_per_s` that of a copy, bytes read plus written; without it, operations alone
    count. ValueError for a rate that is not above 0.
    """
    _check_rate("rate_flops_per_s", rate_flops_per_s)
    if copy_bytes_per_s is not None:
        _check_rate("copy_bytes_per_s", copy_bytes_per_s)
    return sum(
        layer_floor_s(layer, rate_flops_per_s, copy_bytes_per_s)
        for layer in costs(network, batch, precision).values()
    )


def layer_floor_s(
    layer: LayerCost, rate_flops_per_s: float, copy_bytes_per_s: float | None = None
) -> float:
    """The same of one layer, whose rates were checked."""
    passes = (layer.forward, layer.data_gradient, layer.weight_gradient)
    return sum(_piece_s(piece, rate_flops_per_s, copy_bytes_per_s) for piece in passes)


def utilization(network: Network, batch: int, step_s: float, rate_flops_per_s: float) -> float:
    """Share of a measured ceiling that a training step of `step_s` seconds reaches: its matrix
    FLOP/s over `rate_flops_per_s`. Above 1 only where a fast algorithm ran, or a ceiling was
    measured wrongly. ValueError for a rate or time that is not above 0."""
    _check_rate("rate_flops_per_s", rate_flops_per_s)
    _check_rate("step_s", step_s)
    return totals(network, batch).total.matrix_flops / step_s / rate_flops_per_s


def _piece_s(cost: Cost, rate_flops_per_s: float, copy_bytes_per_s: float | None) -> float:
    compute_s = cost.matrix_flops / rate_flops_per_s
    memory_s = cost.moved_bytes / copy_bytes_per_s if copy_bytes_per_s else 0.0
    return max(compute_s, memory_s)


def _check_rate(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name}={value} must be more than 0")
