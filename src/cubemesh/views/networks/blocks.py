"""Rows of a network's drawing: a layer with what follows it elementwise, and blocks that repeat.

A row is a layer and the normalizations, activations and dropouts that only it feeds. Rows between
two places through which a single value passes are a block: a residual block, an Inception module,
or a single layer. Equal blocks that follow one another are one group with a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cubemesh.networks.describe import LayerRow
from cubemesh.networks.layers import Shape

FOLDED = frozenset(
    {
        *("batch-norm", "local-response-norm", "relu", "dropout", "flatten", "gelu", "tanh"),
        *("sigmoid", "activation"),
    }
)
"""Types of layers that are drawn in the row of the layer before them."""
LONGEST_PERIOD = 8
"""Most blocks that are repeated together, such as attention and perceptron of a transformer."""


@dataclass(frozen=True, kw_only=True)
class DrawnRow:
    """One row of the drawing."""

    name: str
    """Of its first layer."""
    layer: str
    settings: str
    followed_by: tuple[str, ...] = ()
    """Types of the layers that are folded into it."""
    inputs: tuple[str, ...]
    """Values that it reads, by the names of rows' values."""
    value: str
    """Name of what it produces: its last layer."""
    shape: Shape
    parameters: int
    segment: str


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Rows that are drawn once and repeated `times` times one after another."""

    rows: tuple[DrawnRow, ...]
    times: int = 1
    value: str
    """What the last repetition produces, which later rows read."""


def folded_rows(layers: Sequence[LayerRow]) -> list[DrawnRow]:
    """A row for each layer that is not folded into the one before it."""
    readers = Counter(name for layer in layers for name in layer.inputs)
    rows: list[DrawnRow] = []
    places: dict[str, int] = {}
    for layer in layers:
        source = layer.inputs[0] if len(layer.inputs) == 1 else ""
        if layer.layer in FOLDED and source in places and readers[source] == 1:
            place = places.pop(source)
            rows[place] = replace(
                rows[place],
                followed_by=(*rows[place].followed_by, layer.layer),
                value=layer.name,
                shape=layer.output_shape,
                parameters=rows[place].parameters + layer.parameters,
            )
        else:
            place = len(rows)
            rows.append(
                DrawnRow(
                    name=layer.name,
                    layer=layer.layer,
                    settings=layer.settings,
                    inputs=layer.inputs,
                    value=layer.name,
                    shape=layer.output_shape,
                    parameters=layer.parameters,
                    segment=layer.segment,
                )
            )
        places[layer.name] = place
    return rows


def grouped(rows: Sequence[DrawnRow]) -> list[RowGroup]:
    """The rows in order, with blocks that repeat as one group."""
    blocks = _blocks(rows)
    signatures = [_signature(block) for block in blocks]
    groups: list[RowGroup] = []
    place = 0
    while place < len(blocks):
        period, times = _repetition(signatures, place)
        own = tuple(row for block in blocks[place : place + period] for row in block)
        place += period * times
        groups.append(RowGroup(rows=own, times=times, value=blocks[place - 1][-1].value))
    return groups


def _blocks(rows: Sequence[DrawnRow]) -> list[list[DrawnRow]]:
    """Rows up to each place where the value of one row is all that later rows read."""
    last = {name: place for place, row in enumerate(rows) for name in row.inputs}
    blocks: list[list[DrawnRow]] = [[]]
    needed: dict[str, int] = {}
    for place, row in enumerate(rows):
        blocks[-1].append(row)
        for name in row.inputs:  # of the network's own inputs too
            needed[name] = last[name]
        needed[row.value] = last.get(row.value, place)
        needed = {name: end for name, end in needed.items() if end > place}
        if set(needed) == {row.value}:
            blocks.append([])
    return [block for block in blocks if block]


def _signature(block: Sequence[DrawnRow]) -> tuple[object, ...]:
    """Equal for blocks of equal layers that are connected in the same way."""
    numbers = {row.value: number for number, row in enumerate(block)}
    return tuple(
        (
            *(row.layer, row.settings, row.followed_by, row.shape, row.parameters),
            tuple(numbers.get(name, -1) for name in row.inputs),
        )
        for row in block
    )


def _repetition(signatures: Sequence[object], begin: int) -> tuple[int, int]:
    """How many blocks from `begin` on repeat together, and how often: as covers the most blocks,
    of equal ones the fewest together."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        unit = list(signatures[begin : begin + period])
        times = 1
        while (
            len(unit) == period
            and list(signatures[begin + times * period : begin + (times + 1) * period]) == unit
        ):
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
