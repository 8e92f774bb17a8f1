"""Forecasts of transformers on many devices, judged on published rates that no factor has seen.

The factors of forecast/transformers/factors.py are fitted to all rows, and, source by source or
style by style, to all other rows, to judge those left out. A fit minimizes the mean
absolute logarithm of forecast over published step time, a source of n rows with the weight of the
root of n, plus `PENALTY` times the squared distance of each factor from its prior: the logarithm of
their ratio, or their difference over the factor's scale. (Coordinate descent with random
directions, from the priors.) Rows on generations without shares of their own, such as Blackwell,
are judged only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.transformers.factors import FITTED, FittedFactor
from cubemesh.forecast.transformers.groups import Groups
from cubemesh.forecast.transformers.layout import TrainingPlan, check_plan, read_layout
from cubemesh.forecast.transformers.memory import least_recomputation, memory
from cubemesh.forecast.transformers.step import (
    PlanWork,
    Rates,
    calibrated_rates,
    device_rates,
    forecast_layout,
    plan_work,
    step_parts,
)
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import system
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.papers.published.transformers import PublishedTransformerRate, transformer_rates

PENALTY = 0.01
ROUNDS = 10
FITTED_GENERATIONS = ("Ampere", "Hopper")
Array = NDArray[np.float64]
LeftOut = Literal["source", "style"]


@dataclass(frozen=True, kw_only=True)
class TransformerRow:
    """A published rate as a plan, with the work of its step."""

    figure: PublishedTransformerRate
    plan: TrainingPlan
    work: PlanWork
    rates: Rates
    step_s: float
    """Published."""

    @property
    def group(self) -> str:
        """The source that is left out as a whole: all tables of one project."""
        return self.figure.source.partition(",")[0]

    @property
    def fitted(self) -> bool:
        """Whether its device's generation has shares of its own."""
        sheet = datasheets()[self.figure.device]
        return sheet.architecture in FITTED_GENERATIONS

    def forecast_s(self, factors: Mapping[str, float]) -> float:
        """Its step with these factors."""
        return sum(step_parts(self.plan, self.work, self.rates, factors).values())

    @property
    def memory_gib(self) -> float:
        """Forecast of what the published figure has: without CUDA's own."""
        found = memory(self.plan)
        return (found.total_bytes - found.library_bytes) / (1 << 30)


@dataclass(frozen=True, kw_only=True)
class TransformerFold:
    """One source or style, judged by factors fitted to the others."""

    left_out: str
    factors: Mapping[str, float]
    saw: tuple[TransformerRow, ...]
    judged: tuple[tuple[TransformerRow, float], ...]
    """Rows with their errors: forecast over published step, less 1."""


@cache
def transformer_rows() -> tuple[TransformerRow, ...]:
    """Every published rate; UsageError naming the first whose layout cannot be."""
    machines: dict[tuple[str, str, int | None], Groups] = {}
    found = []
    for figure in transformer_rates():
        key = figure.system, figure.device, figure.network_gbit_per_s
        if key not in machines:
            machines[key] = Groups(_system(*key), defaults())
        found.append(_row(figure, machines[key]))
    return tuple(found)


def _system(name: str, device: str, gbit_per_s: int | None) -> System:
    found = replace(system(name), device=device)
    if gbit_per_s is None or found.cluster is None:
        return found
    cluster = found.cluster
    port = replace(cluster.network, gbit_per_s=gbit_per_s / cluster.ports_per_system)
    return replace(found, cluster=replace(cluster, network=port))


def _row(figure: PublishedTransformerRate, groups: Groups) -> TransformerRow:
    recompute, _, layers = figure.recompute.partition(":")
    plan = TrainingPlan(
        network=transformer(figure.network),
        system=groups.system,
        layout=read_layout(figure.layout),
        micro_batch=figure.micro_batch,
        global_batch=figure.global_batch,
        sequence_length=figure.sequence_length,
        precision=figure.precision,
        recompute="none" if recompute == "auto" else recompute,  # type: ignore[arg-type]
        recompute_layers=int(layers or 0),
        attention=figure.attention,  # type: ignore[arg-type]
        style=figure.style,  # type: ignore[arg-type]
    )
    try:
        check_plan(plan, figure.devices)
    except UsageError as error:
        raise UsageError(f"{figure.source}: {error}") from None
    rates = device_rates(groups.system, figure.precision)
    if recompute == "auto":
        plan = least_recomputation(plan, rates.memory_bytes)
    return TransformerRow(
        figure=figure,
        plan=plan,
        work=plan_work(plan, groups, rates),
        rates=rates,
        step_s=_published_s(figure, plan),
    )


def _published_s(figure: PublishedTransformerRate, plan: TrainingPlan) -> float:
    tokens = figure.global_batch * figure.sequence_length
    if figure.metric == "s/step":
        return figure.value
    if figure.metric == "tokens/s/device":
        return tokens / figure.value / figure.devices
    network = plan.network
    if figure.metric == "model TFLOP/s/device":
        flops = tokens * network.token_flops(plan.sequence_length)
        return flops / (figure.value * 1e12 * figure.devices)
    output = 2 * network.vocabulary * network.hidden
    layers = network.token_flops(plan.sequence_length) / 3 - output
    return tokens * (4 * layers + 3 * output) / (figure.value * 1e12 * figure.devices)


def errors(rows: Sequence[TransformerRow], factors: Mapping[str, float]) -> Array:
    """Forecast over published step time, less 1, of each row."""
    return np.array([row.forecast_s(factors) / row.step_s - 1 for row in rows])


def fit(rows: Sequence[TransformerRow], rounds: int = ROUNDS) -> dict[str, float]:
    """The factors with the least loss on these rows; the same for the same rows."""
    counts = Counter(row.figure.source for row in rows)
    weights = np.array([counts[row.figure.source] ** -0.5 for row in rows])
    weights /= weights.sum()

    def loss(values: Mapping[str, float]) -> float:
        distances = np.abs(np.log1p(errors(rows, values)))
        far = sum(_distance(FITTED[name], value) ** 2 for name, value in values.items())
        return float(weights @ distances) + PENALTY * far

    values = {name: factor.prior for name, factor in FITTED.items()}
    best = loss(values)
    random, step = np.random.default_rng(0), 0.15

    def better(changes: Mapping[str, float]) -> bool:
        nonlocal values, best
        tried = {**values, **{name: _clipped(name, value) for name, value in changes.items()}}
        found = loss(tried)
        if found >= best - 1e-6:
            return False
        values, best = tried, found
        return True

    for number in range(rounds):
        moved = False
        for name, factor in FITTED.items():
            for sign in (1, -1):
                while better({name: values[name] + sign * step * _reach(factor, values[name])}):
                    moved = True
        for _ in range(60):
            chosen = random.choice(list(FITTED), size=int(random.integers(2, 5)), replace=False)
            moved |= better(
                {
                    name: values[name] + step * random.normal() * _reach(FITTED[name], values[name])
                    for name in map(str, chosen)
                }
            )
        if not moved or number % 2:
            step *= 0.7
    return values


def _reach(factor: FittedFactor, value: float) -> float:
    return max(value, 0.03 * factor.most)


def _clipped(name: str, value: float) -> float:
    return min(FITTED[name].most, max(FITTED[name].least, value))


def _distance(factor: FittedFactor, value: float) -> float:
    if factor.scale:
        return (value - factor.prior) / factor.scale
    return math.log(value / factor.prior)


def left_out(by: LeftOut = "source", rounds: int = ROUNDS) -> tuple[TransformerFold, ...]:
    """Every source or style, judged by factors that have not seen it."""
    rows = transformer_rows()
    key = _GROUPS[by]
    folds = []
    for name in dict.fromkeys(map(key, rows)):
        saw = tuple(row for row in rows if key(row) != name and row.fitted)
        aside = [row for row in rows if key(row) == name]
        factors = fit(saw, rounds)
        judged = tuple(zip(aside, errors(aside, factors).tolist(), strict=True))
        folds.append(TransformerFold(left_out=name, factors=factors, saw=saw, judged=judged))
    return tuple(folds)


def calibrated() -> tuple[tuple[TransformerRow, float], ...]:
    """Rows whose layout is also published on fewer devices, with their errors where the smallest
    number of devices calibrates the device, by the factors in use."""
    alike: dict[object, list[TransformerRow]] = defaultdict(list)
    for row in transformer_rows():
        alike[_apart_from_devices(row)].append(row)
    found = []
    for rows in alike.values():
        first = min(rows, key=lambda row: row.figure.devices)
        measured = {first.figure.devices: first.figure.global_batch / first.step_s}
        groups = Groups(first.plan.system, defaults())
        for row in (row for row in rows if row.figure.devices > first.figure.devices):
            plan = replace(
                row.plan,
                recompute=first.plan.recompute,
                recompute_layers=first.plan.recompute_layers,
            )
            rates = calibrated_rates(plan, groups, row.rates, measured)
            found.append((row, forecast_layout(plan, groups, rates).step_s / row.step_s - 1))
    return tuple(found)


def _apart_from_devices(row: TransformerRow) -> object:
    """What rows have in common that differ in data-parallel size only."""
    figure = row.figure
    layout = replace(row.plan.layout, dp=1, shard=0)
    numbers = (figure.sequence_length, figure.micro_batch, figure.global_batch / figure.devices)
    machine = (figure.system, figure.device, figure.network_gbit_per_s)
    program = (figure.style, figure.precision, figure.recompute, figure.attention)
    return figure.source, figure.network, layout, numbers, machine, program


_GROUPS: dict[LeftOut, Callable[[TransformerRow], str]] = {
    "source": lambda row: row.group,
    "style": lambda row: row.plan.style,
}
