"""Sensitivity: how much accuracy each operator in 8 bits costs, the others being in fp32.

A builder leaves the most sensitive ones in fp32 where the whole network in 8 bits is not accurate
enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.accuracy import Agreement, agreement
from cubemesh.inference.quantization.calibrate import Calibration, OpenSession
from cubemesh.inference.quantization.quantize import quantizable, quantize
from cubemesh.onnx.graph import Graph
from cubemesh.onnx.writer import serialized

MOST_GROUPS = 60
"""Of operators that are quantized together; a network with fewer operators has one in each."""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What quantizing some operators changes."""

    operators: tuple[str, ...]
    agreement: Agreement
    """With fp32."""


def sensitivity(
    graph: Graph,
    calibration: Calibration,
    method: str,
    open_session: OpenSession,
    batches: Sequence[Mapping[str, Array]],
    operators: Collection[str] | None = None,
    most_groups: int = MOST_GROUPS,
) -> tuple[Sensitivity, ...]:
    """What each of `operators`, by default all that are quantizable, costs alone, the most
    sensitive first: by decisions changed, then by divergence. More than `most_groups` operators
    are quantized in groups of neighbours. Scores are the graph's first output."""
    chosen = quantizable(graph) if operators is None else tuple(operators)
    reference = scores_of(graph, open_session, batches)
    found = []
    for group in _groups(chosen, most_groups):
        quantized = quantize(graph, calibration, method, group, sums=False)
        scores = scores_of(quantized, open_session, batches)
        found.append(Sensitivity(operators=group, agreement=agreement(reference, scores)))
    return tuple(
        sorted(found, key=lambda s: (-s.agreement.changed, -s.agreement.divergence, s.operators))
    )


def scores_of(
    graph: Graph, open_session: OpenSession, batches: Iterable[Mapping[str, Array]]
) -> Array:
    """The first output of `graph` for all samples of `batches`."""
    session = open_session(serialized(graph))
    return np.concatenate([np.array(session.run(batch)[0]) for batch in batches])


def _groups(operators: Sequence[str], most: int) -> list[tuple[str, ...]]:
    ends = np.linspace(0, len(operators), min(most, len(operators)) + 1).round().astype(int)
    return [tuple(operators[a:b]) for a, b in pairwise(ends)]
