"""Datasheet of a device: figures, each with the source it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["gpu", "cpu", "accelerator"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""An accelerator is neither a processor nor a GPU: a TPU, a Gaudi, an Ascend."""
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Whose dense peaks a datasheet may state, in operations a second."""
FIGURES = (
    *PRECISIONS,
    *("fp32_at_base_clock", "memory_bytes", "memory_bytes_per_s", "power_watts"),
    "link_bytes_per_s",
)
"""Everything a datasheet may state. `link_bytes_per_s` is one way, all links of a device to others
of its kind together."""


@dataclass(frozen=True, kw_only=True)
class Sourced:
    """A figure and its source."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most operations a second that a device does in some precision."""

    flops_per_s: float
    computed_in: str
    """The precision of the arithmetic: `fp32` if the device has no unit for the requested one."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Datasheet:
    """One device as its maker describes it."""

    id: str
    """`h200-sxm-141gb`: its table in the catalogue."""
    name: str
    kind: Kind
    family: str
    """The model, of which there may be several forms: `P100`."""
    architecture: str
    named: tuple[str, ...]
    """The words by which drivers and tables call this very form."""
    figures: Mapping[str, Sourced]
    """Keys of `FIGURES` → figure; what is not stated is missing."""
    computes: Mapping[str, str] = field(default_factory=dict)
    """A precision the device has no fast unit for → the one its libraries compute in instead."""
    note: str = ""

    def peak(self, precision: str) -> Peak | None:
        """The dense peak of what runs in `precision`; None where it is not known."""
        computed_in = self.computes.get(precision, precision)
        found = self.figures.get(computed_in) if computed_in in PRECISIONS else None
        if found is None:
            return None
        return Peak(flops_per_s=found.value, computed_in=computed_in, source=found.source)

    def value(self, figure: str) -> float | None:
        """One of `FIGURES`; None where it is not stated."""
        found = self.figures.get(figure)
        return None if found is None else found.value
