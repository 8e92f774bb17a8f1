"""Cost of a training: time, energy, money and CO₂ from throughput, power and prices.

    hours    samples / throughput / 3,600
    energy   power · hours, of what the power covers (docs/power.md)
    rented   devices · price per hour · hours
    owned    devices · purchase price · hours / hours of depreciation + energy · power price
    CO₂      energy · CO₂ per kWh

A rented device comes with its electricity. An owned one loses its price evenly over the years of
depreciation, in which it is used all the time; one that is idle half the time costs twice as much.
The default workload is the ImageNet training of the papers: 90 epochs of 1.28 million images
(Dell EMC 2016 [003]).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from cubemesh.errors import UsageError, unknown_name
from cubemesh.units import format_count, format_number

HOUR_S = 3600.0
YEAR_HOURS = 8760.0
JOULES_PER_KWH = 3.6e6
IMAGENET_EPOCHS, IMAGENET_IMAGES = 90.0, 1_280_000.0


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices in units of money, and the training that they are for."""

    price_per_hour: float | None = None
    """Of a rented device, or of a machine with one."""
    purchase_price: float | None = None
    """Of an owned device."""
    depreciation_years: float = 3.0
    power_price: float | None = None
    """Of a kWh."""
    co2_per_kwh: float | None = None
    """Kilograms."""
    epochs: float = IMAGENET_EPOCHS
    samples: float = IMAGENET_IMAGES
    """Of an epoch."""
    tokens: float | None = None
    """Of the whole training, instead of epochs of samples, for networks of token input."""

    @property
    def known(self) -> bool:
        """Whether anything has a price."""
        return any(
            price is not None
            for price in (self.price_per_hour, self.purchase_price, self.power_price)
        )

    @property
    def training(self) -> str:
        """The training in words: `90 epochs of 1,280,000 samples`."""
        if self.tokens is not None:
            return f"{format_number(self.tokens / 1e9)} billion tokens"
        return f"{format_number(self.epochs)} epochs of {format_count(round(self.samples))} samples"

    def all_samples(self, tokens_per_sample: int | None = None) -> float | None:
        """Samples of the whole training; None for a number of tokens where samples have none."""
        if self.tokens is None:
            return self.epochs * self.samples
        return None if not tokens_per_sample else self.tokens / tokens_per_sample


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What a training takes; None where a price or the power is unknown."""

    hours: float
    energy_kwh: float | None
    co2_kg: float | None
    rented: float | None
    owned: float | None
    """Depreciation and electricity; None without a purchase price, or with a power price but no
    power."""
    electricity: float | None


def training_cost(
    prices: Prices, *, hours: float, devices: int, watts: float | None
) -> TrainingCost:
    """The cost of `hours` on `devices`, which take `watts` together."""
    kwh = None if watts is None else watts * hours * HOUR_S / JOULES_PER_KWH
    power = None if kwh is None or prices.power_price is None else kwh * prices.power_price
    owned = None
    if prices.purchase_price is not None and (prices.power_price is None or power is not None):
        life = prices.depreciation_years * YEAR_HOURS
        owned = devices * prices.purchase_price * hours / life + (power or 0.0)
    return TrainingCost(
        hours=hours,
        energy_kwh=kwh,
        co2_kg=None if kwh is None or prices.co2_per_kwh is None else kwh * prices.co2_per_kwh,
        rented=None if prices.price_per_hour is None else devices * prices.price_per_hour * hours,
        owned=owned,
        electricity=power,
    )


def cost_at(
    prices: Prices,
    *,
    samples_per_s: float,
    devices: int,
    watts: float | None,
    tokens_per_sample: int | None = None,
) -> TrainingCost | None:
    """The cost of the training of `prices` at a throughput; None for a number of tokens where
    samples have none."""
    samples = prices.all_samples(tokens_per_sample)
    if samples is None:
        return None
    hours = samples / samples_per_s / HOUR_S
    return training_cost(prices, hours=hours, devices=devices, watts=watts)


COLUMNS: Mapping[str, tuple[str, str]] = {
    "hours": ("time", "h"),
    "energy_kwh": ("energy", "kWh"),
    "co2_kg": ("CO₂", "kg"),
    "rented": ("rented", ""),
    "owned": ("owned", ""),
    "electricity": ("electricity", ""),
}
"""Field of a cost → its column and unit; money has the unit of the prices."""


def known_columns(costs: Iterable[TrainingCost | None]) -> dict[str, tuple[str, str]]:
    """The columns that any of the costs has. Electricity is part of what is owned."""
    found = [cost for cost in costs if cost is not None]
    names = [name for name in COLUMNS if any(getattr(c, name) is not None for c in found)]
    if "owned" in names and "electricity" in names:
        names.remove("electricity")
    return {name: COLUMNS[name] for name in names}


def read_prices(lines: Iterable[str], setting: str = "cost", base: Prices | None = None) -> Prices:
    """`["power_price=0.3", "epochs=90"]` on top of `base`; UsageError for what is no price."""
    known = {field.name for field in fields(Prices)}
    found: dict[str, float] = {}
    for line in lines:
        name, mark, text = line.partition("=")
        name = name.strip()
        if name not in known:
            raise unknown_name(setting, name or line, sorted(known))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        free = name in ("price_per_hour", "purchase_price", "power_price", "co2_per_kwh")
        if not mark or not math.isfinite(value) or value < 0 or (value == 0 and not free):
            least = "0 or more" if free else "above 0"
            raise UsageError(
                f"{setting}={line}: write {name}=NUMBER with a number {least}, as in "
                f"{setting}=price_per_hour=2.5,power_price=0.3."
            )
        found[name] = value
    return replace(base or Prices(), **found)
