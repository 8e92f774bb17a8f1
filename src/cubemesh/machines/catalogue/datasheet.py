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
    *("multiprocessors", "cores", "tensor_cores", "base_clock_hz", "boost_clock_hz"),
    *("compute_capability", "price_usd", "price_year"),
)
"""Everything a datasheet may state. `link_bytes_per_s` is one way, all links of a device to others
of its kind together. `cores` are units of fp32 arithmetic, CUDA cores of NVIDIA. `price_usd` is the
price of a new one at its launch in `price_year`, in US dollars of that year."""
FIRST_TENSOR_CORES = 7.0
"""Compute capability of the first NVIDIA GPUs with tensor cores (Volta)."""


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
class Price:
    """What a device cost at its launch."""

    amount: float
    currency: str
    """ISO 4217: `USD`."""
    year: int
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

    @property
    def multiprocessors(self) -> int | None:
        """Streaming multiprocessors (SMs) of a GPU; None where they are not stated."""
        return _whole(self.value("multiprocessors"))

    @property
    def cores(self) -> int | None:
        """Units of fp32 arithmetic (CUDA cores)."""
        return _whole(self.value("cores"))

    @property
    def tensor_cores(self) -> int | None:
        """Tensor cores; 0 for an NVIDIA GPU older than Volta."""
        capability = self.value("compute_capability")
        if capability is not None and capability < FIRST_TENSOR_CORES:
            return 0
        return _whole(self.value("tensor_cores"))

    @property
    def clock_hz(self) -> float | None:
        """Base clock in hertz."""
        return self.value("base_clock_hz")

    @property
    def boost_clock_hz(self) -> float | None:
        """Boost clock in hertz."""
        return self.value("boost_clock_hz")

    @property
    def compute_capability(self) -> str | None:
        """CUDA compute capability: `6.1`."""
        found = self.value("compute_capability")
        return None if found is None else f"{found:.1f}"

    @property
    def memory_bytes(self) -> float | None:
        """Memory that programs can use, in bytes."""
        return self.value("memory_bytes")

    @property
    def memory_bandwidth_bytes_per_s(self) -> float | None:
        """Peak bandwidth of the memory, in bytes per second."""
        return self.value("memory_bytes_per_s")

    @property
    def tdp_watts(self) -> float | None:
        """Thermal design power in watts."""
        return self.value("power_watts")

    @property
    def price(self) -> Price | None:
        """Price at the launch; None where no source states one."""
        found, year = self.figures.get("price_usd"), self.value("price_year")
        if found is None or year is None:
            return None
        return Price(amount=found.value, currency="USD", year=int(year), source=found.source)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
