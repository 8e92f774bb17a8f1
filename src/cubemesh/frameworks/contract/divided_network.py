"""A network whose layers or sequences several devices divide: its graph, and which part of each
value and parameter a device has. A strategy makes it (parallel/tensor_layouts.py,
parallel/context_layouts.py); a framework computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Layer

ValueLayout = Literal["whole", "samples", "positions", "features", "sum"]
"""`whole`: every device has all of a value; `samples`, `positions`, `features`: its part of the
first, of the second, or of the last axis; `sum`: the value is the sum over the devices."""
Style = Literal["columns", "rows", "vocabulary", "positions"]
"""How a layer's parameters are divided: a linear layer by columns or rows, an embedding by its
vocabulary, or not at all, in a layer that computes the device's positions."""


@dataclass(frozen=True, kw_only=True)
class Redistribution(Layer):
    """A node of a divided network that changes the layout of a value, by a collective."""

    source: ValueLayout
    target: ValueLayout
    multiplied: bool = False
    """Whether linear layers divided by columns read it, so that its gradient is a sum."""


@dataclass(frozen=True, kw_only=True)
class DividedNetwork:
    """A network on several devices."""

    network: Network
    """With a `Redistribution` wherever a layout changes."""
    devices: int
    styles: Mapping[str, Style]
    """By node; others have whole parameters and compute what their inputs hold."""
    layouts: Mapping[str, ValueLayout]
    """Of each input and node's result."""
    sequence: bool
    """Whether values are divided by positions outside of the pairs."""
    packed: Mapping[str, int]
    """Parameter → number of equal parts (queries, keys, values) that are divided each."""

    @property
    def data_parallel(self) -> tuple[str, ...]:
        """The parameters of layers that compute each device's own samples, so that their gradients
        are averaged over the devices."""
        names = (
            name
            for node in self.network.nodes
            if self.layouts[node.name] == "samples"
            for name in node.parameters.values()
        )
        return tuple(dict.fromkeys(names))

    @property
    def axes(self) -> Mapping[str, int | None]:
        """Parameter → the axis by which it is divided; None for a whole one."""
        found: dict[str, int | None] = dict.fromkeys(self.network.parameters)
        for node in self.network.nodes:
            style = self.styles.get(node.name)
            for role, name in node.parameters.items():
                if style in ("columns", "vocabulary"):
                    found[name] = 0
                elif style == "rows" and role == "weight":
                    found[name] = 1
        return found


@dataclass(frozen=True, kw_only=True)
class GatheredKeys(Layer):
    """A node of a network with divided sequences: the keys and values of all positions side by
    side, (length, 2 · features), from those of each device."""

    packed: bool
    """Whether queries, keys and values are one input; otherwise keys and values are two."""


@dataclass(frozen=True, kw_only=True)
class DividedSequence:
    """A network each sequence of which is divided over devices."""

    network: Network
    """With `GatheredKeys` before each attention. Every device has all parameters."""
    devices: int
    length: int
    """Positions of a sequence."""
    causal: bool
    """Whether an attention reads earlier positions only. A device then has the n-th part of twice
    as many as there are devices and the n-th from the end, so that all have as much to do."""

    @property
    def part_length(self) -> int:
        """Positions of a contiguous part."""
        return self.length // (2 * self.devices if self.causal else self.devices)

    def parts(self, device: int) -> tuple[int, ...]:
        """The first position of each contiguous part of a device, in order."""
        each = self.part_length
        if not self.causal:
            return (each * device,)
        return each * device, each * (2 * self.devices - 1 - device)
