"""Tables, chart and findings of `tune`: the accepted steps, rejected and untried configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cubemesh.experiments.analysis.answer import cell_or_dash
from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.experiments.analysis.groups import Group, throughput_unit
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio
from cubemesh.experiments.tune.convergence_check import ROUNDING
from cubemesh.experiments.tune.search import SEEDS, Search
from cubemesh.experiments.tune.search_space import Configuration
from cubemesh.networks import rate_unit
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    RunRecord,
    Status,
    Table,
)
from cubemesh.units import format_seconds

MAX_NAMED = 6
"""Untried configurations that are named; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """An accepted step with its throughput."""

    changes: tuple[str, ...]
    """`key=value` of each change; empty for the baseline."""
    label: str
    """The same in words."""
    group: Group[Configuration]
    rate: Figure
    to_before: Figure | None
    """Throughput relative to the step before; None for the baseline."""
    to_stock: Figure | None

    @property
    def name(self) -> str:
        """`layout=nhwc, precision=bf16`, or `stock`."""
        return ", ".join(self.changes) or "stock"


def rate_of(search: Search, configuration: Configuration) -> Figure | None:
    """Throughput over all its runs, with its interval; None if no run succeeded."""
    return search.group(configuration).throughput if configuration in search.tried else None


def step_results(search: Search) -> list[StepResult]:
    """The accepted steps, the baseline first; empty if nothing ran."""
    stock = search.stock
    if stock is None:
        return []
    steps: list[StepResult] = []
    for before, after in ((stock, stock), *((s.before, s.after) for s in search.steps_taken)):
        rate = rate_of(search, after)
        assert rate is not None, "an accepted configuration has run"
        steps.append(
            StepResult(
                changes=after.changes(before),
                label=after.words(before),
                group=search.group(after),
                rate=rate,
                to_before=ratio(rate, steps[-1].rate) if steps else None,
                to_stock=ratio(rate, steps[0].rate) if steps else None,
            )
        )
    return steps


def timed(search: Search) -> Iterator[RunRecord]:
    """The timed runs: all but those that only logged losses."""
    for records in search.tried.values():
        yield from records
    if search.alternated is not None:
        yield search.alternated


def tables(search: Search) -> Iterator[Table]:
    """The accepted steps, and all configurations that were tried."""
    unit = throughput_unit(timed(search))
    steps = step_results(search)
    if steps:
        yield Table(
            title="Steps",
            columns=(
                Column(name="change"),
                Column(name="throughput", unit=unit, digits=4),
                Column(name="vs step before", unit="×"),
                Column(name="vs stock", unit="×"),
                Column(name="runs"),
            ),
            rows=tuple(_step_row(step) for step in steps),
        )
    if search.tried:
        yield Table(
            title="All trials",
            columns=(
                Column(name="setting"),
                Column(name="throughput", unit=unit, digits=4),
                Column(name="vs stock", unit="×"),
                Column(name="runs"),
                Column(name="result"),
            ),
            rows=tuple(_tried_row(search, configuration) for configuration in _ranked(search)),
        )


def _step_row(step: StepResult) -> tuple[Cell, ...]:
    group = step.group
    return (
        Cell(text=step.name, run_id=group.run_id),
        group.cell(step.rate),
        *(cell_or_dash(r, group.run_id) for r in (step.to_before, step.to_stock)),
        Cell(value=len(group.ok)),
    )


def _ranked(search: Search) -> list[Configuration]:
    """The fastest first, failed ones last."""
    return sorted(search.tried, key=lambda c: -(search.speed(c) or 0.0))


def _tried_row(search: Search, configuration: Configuration) -> tuple[Cell, ...]:
    group, rate = search.group(configuration), rate_of(search, configuration)
    name = Cell(text=words(search, configuration), run_id=group.run_id)
    stock = None if search.stock is None else rate_of(search, search.stock)
    if rate is None or stock is None:
        return (name, *[Cell(reason=_why(group), run_id=group.run_id)] * 4)
    what = "fastest" if configuration == search.best else ""
    if configuration in search.rejected:
        what = "rejected"
    share = ratio(rate, stock) if configuration != search.stock else None
    return (
        name,
        group.cell(rate),
        cell_or_dash(share, group.run_id),
        Cell(value=len(group.ok)),
        Cell(text=what or " "),
    )


def _why(group: Group[Configuration]) -> str:
    """Why a configuration has no result; a trial's time limit is set by the search."""
    record = group.records[0]
    if record.outcome.status is Status.TIMED_OUT:
        limit = format_seconds(record.spec.budget.time_limit_s)
        return f"not finished within its time limit of {limit}; raise --minutes"
    return group.why


def words(search: Search, configuration: Configuration) -> str:
    """A configuration by its differences from stock; the stock one in full."""
    stock = search.stock
    if stock is not None and configuration != stock:
        return configuration.words(stock)
    text = f"{configuration.framework}, {configuration.precision}, {configuration.layout}"
    return text if stock is None else f"stock: {text}"


def charts(network: str, search: Search) -> Iterator[Chart]:
    """A bar for each step."""
    steps = step_results(search)
    if steps:
        points = tuple(s.group.point(f"{n}. {s.label}", s.rate) for n, s in enumerate(steps, 1))
        yield Chart(
            name=f"tune-{network}",
            title=f"{network}: {rate_unit(network)} after each change",
            kind="bar",
            x=Axis(name="change", scale="category"),
            y=Axis(name="throughput", unit=rate_unit(network), from_zero=True),
            lines=(Line(name=network, points=points),),
        )


def findings(network: str, search: Search) -> Iterator[Finding]:
    """The fastest configuration and how to use it; rejected ones, and why; untried ones."""
    steps = step_results(search)
    if not steps:
        reasons = "; ".join(f"{c.framework}: {search.group(c).why}" for c in search.tried)
        yield Finding(
            code="nothing-measured",
            text=f"No setting could be measured{reasons and f': {reasons}'}.",
            remedy="Raise --minutes, or choose other frameworks.",
        )
        return
    yield _fastest(network, search, steps)
    for configuration, result in search.rejected.items():
        yield Finding(
            code="rejected-setting",
            text=f"Rejected: {words(search, configuration)}: {result.why}.",
        )
    if search.untried:
        named = [words(search, c) for c in search.untried]
        more = len(named) - MAX_NAMED
        rest = f"; and {more} more" if more > 0 else ""
        yield Finding(
            code="untried-settings",
            text=f"No time was left to try: {'; '.join(named[:MAX_NAMED])}{rest}.",
            remedy="Raise --minutes; stored trials are not measured again.",
        )
    elif search.cut_short:
        yield Finding(
            code="search-cut-short",
            text="The time ran out before the fastest settings were compared in all rounds.",
            remedy="Raise --minutes; stored trials are not measured again.",
        )


def gain(search: Search) -> Figure | None:
    """Throughput of the best over stock: interleaved in one process, or over separate runs; None
    if nothing ran, or stock is the best."""
    stock, best = search.stock, search.best
    if stock is None or best is None or stock == best:
        return None
    if (paired := _paired(search)) is not None:
        return paired
    mine, its = rate_of(search, best), rate_of(search, stock)
    return ratio(mine, its) if mine and its else None


def _paired(search: Search) -> Figure | None:
    """The interleaved ratio; None if they were not interleaved, or not long enough."""
    paired = None if search.alternated is None else ratio_of_record(search.alternated)
    if paired is None:
        return None
    return Figure(value=paired.value, unit="×", low=paired.low, high=paired.high)


def _fastest(network: str, search: Search, steps: list[StepResult]) -> Finding:
    best, stock, gained = search.best, search.stock, gain(search)
    assert best is not None
    assert stock is not None
    question = "Which settings are fastest?"
    rate = rate_of(search, best)
    assert rate is not None, "the best has run"
    speed = f"{plus_minus(rate)} {rate_unit(network)}"
    if gained is None:
        others = sum(search.speed(c) is not None for c in search.tried) - 1
        rest = f"No other of {others + 1} was 1 % faster" if others else "No other ran"
        return Finding.of(
            code="stock-fastest",
            question=question,
            text=f"{network} trains fastest with the stock settings ({words(search, stock)}): "
            f"{speed}. {rest}.",
            figure=rate,
            unit=rate_unit(network),
            caveats=steps[0].group.caveats,
        )
    how = "interleaved in one process" if _paired(search) is not None else "separate runs"
    settings = " ".join(f"--set {change}" for change in best.changes(stock))
    to_stock = f"{format_ratio(gained)} the speed of {words(search, stock)} ({how})"
    card, unit, base, alike = gained, "× stock", stock, ""
    if (like := _like(search)) is not None and (its := rate_of(search, like)) is not None:
        card, base = ratio(rate, its), like
        unit = f"× {like.framework}, {like.precision}, {like.layout}"
        alike = f"{format_ratio(card)} the speed of {like.framework}, {like.precision}, "
        alike += f"{like.layout} (separate runs), and "
    return Finding.of(
        code="fastest-settings",
        question=question,
        text=f"{network} trains fastest with {best.words(stock)}: {speed}, {alike}{to_stock}.",
        figure=card,
        unit=unit,
        sides=(search.group(best).run_id, search.group(base).run_id),
        remedy=f"Train with --set tuned=true, which sets {settings}.",
        caveats=search.group(best).caveats,
    )


def _like(search: Search) -> Configuration | None:
    """The fastest configuration of the stock framework in the precision and layout of the best;
    None if it was not tried, or is one of the two."""
    stock, best = search.stock, search.best
    if stock is None or best is None or best.framework == stock.framework:
        return None
    found = [
        c
        for c in search.tried
        if (c.framework, c.precision, c.layout, c.batch_per_device)
        == (stock.framework, best.precision, best.layout, best.batch_per_device)
        and search.speed(c) is not None
    ]
    like = max(found, key=lambda c: search.speed(c) or 0.0, default=None)
    return None if like == stock else like


def notes(search: Search, losses: int) -> tuple[str, ...]:
    """How the figures were measured, and the convergence check."""
    return (
        "Throughput is pooled over all runs of a setting, each a fresh process; ± covers windows "
        "and processes.",
        f"A setting is rejected if its mean loss in any quarter of the first {losses} steps (same "
        "weights, same minibatch) differs from the baseline's by more than both "
        f"{100 * ROUNDING:g} % of the first quarter's loss and the spread of {SEEDS} baseline runs "
        "with different seeds (at most half of the drop of the baseline loss).",
    )
