"""The ladder of a tuning, what was refused and left out, its chart and its findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import format_ratio, ratio
from cubemesh.experiments.tune.admission import ROUNDING
from cubemesh.experiments.tune.search import SEEDS, Search
from cubemesh.experiments.tune.search_space import Configuration
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
from cubemesh.units import format_interval, format_seconds

MOST_UNTRIED = 6
"""Settings that had no time and are named; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A rung of the ladder."""

    changes: tuple[str, ...]
    """`key=value` of what was changed; empty on the first rung."""
    said: str
    """The same in words."""
    group: Group[Configuration]
    rate: Figure
    to_before: Figure | None
    """Its throughput as a multiple of the rung's before; None on the first."""
    to_stock: Figure | None

    @property
    def name(self) -> str:
        """`layout=nhwc, precision=bf16`, or `stock`."""
        return ", ".join(self.changes) or "stock"


def rate_of(search: Search, configuration: Configuration) -> Figure | None:
    """Its throughput over all its runs, with its interval; None where none was good."""
    return search.group(configuration).throughput if configuration in search.tried else None


def ladder(search: Search) -> list[StepResult]:
    """Its rungs, the stock setting first; none where nothing ran."""
    stock = search.stock
    top = None if stock is None else rate_of(search, stock)
    if stock is None or top is None:
        return []
    first = search.group(stock)
    steps = [
        StepResult(changes=(), said="stock", group=first, rate=top, to_before=None, to_stock=None)
    ]
    for rung in search.steps_taken:
        rate = rate_of(search, rung.after)
        assert rate is not None, "only what ran is climbed to"
        steps.append(
            StepResult(
                changes=rung.after.changes(rung.before),
                said=rung.after.words(rung.before),
                group=search.group(rung.after),
                rate=rate,
                to_before=ratio(rate, steps[-1].rate),
                to_stock=ratio(rate, top),
            )
        )
    return steps


def timed(search: Search) -> Iterator[RunRecord]:
    """The runs whose speed counts: all but those that were for their losses alone."""
    for records in search.tried.values():
        yield from records
    if search.alternated is not None:
        yield search.alternated


def tables(search: Search) -> Iterator[Table]:
    """The ladder, and every setting that was tried with what became of it."""
    steps = ladder(search)
    if steps:
        yield Table(
            title="The ladder",
            columns=(
                Column(name="set"),
                Column(name="throughput", unit="samples/s", digits=4),
                Column(name="of the rung before", unit="×"),
                Column(name="of stock", unit="×"),
                Column(name="runs"),
            ),
            rows=tuple(_ladder_row(step) for step in steps),
        )
    if search.tried:
        yield Table(
            title="Everything that was tried",
            columns=(
                Column(name="setting"),
                Column(name="throughput", unit="samples/s", digits=4),
                Column(name="of stock", unit="×"),
                Column(name="runs"),
                Column(name=""),
            ),
            rows=tuple(_tried_row(search, configuration) for configuration in _ranked(search)),
        )


def _ladder_row(step: StepResult) -> tuple[Cell, ...]:
    group = step.group
    return (
        Cell(text=step.name, run_id=group.run_id),
        group.cell(step.rate),
        *(Cell(text="–") if r is None else group.cell(r) for r in (step.to_before, step.to_stock)),
        Cell(value=len(group.ok)),
    )


def _ranked(search: Search) -> list[Configuration]:
    """The fastest first, what did not run last."""
    return sorted(search.tried, key=lambda c: -(search.speed(c) or 0.0))


def _tried_row(search: Search, configuration: Configuration) -> tuple[Cell, ...]:
    group, rate = search.group(configuration), rate_of(search, configuration)
    name = Cell(text=words(search, configuration), run_id=group.run_id)
    stock = None if search.stock is None else rate_of(search, search.stock)
    if rate is None or stock is None:
        return (name, *[Cell(reason=_why(group), run_id=group.run_id)] * 4)
    what = "fastest" if configuration == search.best else ""
    if configuration in search.refused:
        what = "refused"
    share = ratio(rate, stock) if configuration != search.stock else None
    return (
        name,
        group.cell(rate),
        Cell(text="–") if share is None else group.cell(share),
        Cell(value=len(group.ok)),
        Cell(text=what or " "),
    )


def _why(group: Group[Configuration]) -> str:
    """Why nothing came of a setting; a trial's time limit is the search's own."""
    record = group.records[0]
    if record.outcome.status is Status.TIMED_OUT:
        limit = format_seconds(record.spec.budget.time_limit_s)
        return f"not done within {limit}, its share of the time; more --minutes give it longer"
    return group.why


def words(search: Search, configuration: Configuration) -> str:
    """A configuration by what is not stock in it; the stock one, or one without it, in full."""
    stock = search.stock
    if stock is not None and configuration != stock:
        return configuration.words(stock)
    told = f"{configuration.framework}, {configuration.precision}, {configuration.layout}"
    return told if stock is None else f"stock: {told}"


def charts(network: str, search: Search) -> Iterator[Chart]:
    """A bar for each rung."""
    steps = ladder(search)
    if steps:
        points = tuple(s.group.point(f"{n}. {s.said}", s.rate) for n, s in enumerate(steps, 1))
        yield Chart(
            name=f"tune-{network}",
            title=f"{network}: samples/s, one change after the other",
            kind="bar",
            x=Axis(name="changed", scale="category"),
            y=Axis(name="throughput", unit="samples/s", from_zero=True),
            lines=(Line(name=network, points=points),),
        )


def findings(network: str, search: Search) -> Iterator[Finding]:
    """The fastest setting and how to have it; what was refused, and why; what had no time."""
    steps = ladder(search)
    if not steps:
        yield Finding(text=_nothing(search), remedy="Give it more --minutes, or other frameworks.")
        return
    yield _fastest(network, search, steps)
    for configuration, why in search.refused.items():
        yield Finding(text=f"Refused: {words(search, configuration)}. {why[0].upper()}{why[1:]}.")
    if search.untried:
        named = [words(search, c) for c in search.untried]
        more = len(named) - MOST_UNTRIED
        rest = f"; and {more} more" if more > 0 else ""
        yield Finding(
            text=f"No time was left to try: {'; '.join(named[:MOST_UNTRIED])}{rest}.",
            remedy="Give it more --minutes; what was measured is not measured again.",
        )
    elif search.cut_short:
        yield Finding(
            text="The time was over before the nearest settings had been compared as often as they "
            "would be.",
            remedy="Give it more --minutes; what was measured is not measured again.",
        )


def _nothing(search: Search) -> str:
    reasons = [f"{c.framework}: {search.group(c).why}" for c in search.tried]
    told = f" {'; '.join(reasons)}." if reasons else ""
    return f"No setting could be measured.{told}"


def gain(search: Search) -> Figure | None:
    """The best setting's throughput over the stock one's: as they alternated in one process, or
    over their runs; None where nothing ran, or stock is the best."""
    stock, best = search.stock, search.best
    if stock is None or best is None or stock == best:
        return None
    if (paired := _paired(search)) is not None:
        return paired
    mine, its = rate_of(search, best), rate_of(search, stock)
    return ratio(mine, its) if mine and its else None


def _paired(search: Search) -> Figure | None:
    """The same as they alternated; None where they did not, or not for long enough."""
    paired = None if search.alternated is None else ratio_of_record(search.alternated)
    if paired is None:
        return None
    return Figure(value=paired.value, unit="×", low=paired.low, high=paired.high)


def _fastest(network: str, search: Search, steps: list[StepResult]) -> Finding:
    best, stock, gained = search.best, search.stock, gain(search)
    assert best is not None
    assert stock is not None
    question = "Which setting is the fastest here?"
    rate = rate_of(search, best)
    assert rate is not None, "the best has run"
    speed = f"{format_interval(rate.value, rate.low, rate.high)} samples/s"
    if gained is None:
        others = sum(search.speed(c) is not None for c in search.tried) - 1
        told = f"None of {others + 1} that ran was 1 % faster" if others else "No other ran"
        return Finding(
            question=question,
            text=f"{network} trains fastest in the stock setting ({words(search, stock)}), at "
            f"{speed}. {told}.",
            value=rate.value,
            unit="samples/s",
            low=rate.low,
            high=rate.high,
            caveats=steps[0].group.caveats,
        )
    how = "alternating in one process" if _paired(search) is not None else "over their runs"
    settings = " ".join(f"--set {change}" for change in best.changes(stock))
    return Finding(
        question=question,
        text=f"{best.words(stock)} trains {network} at {speed}, {format_ratio(gained)} as fast as "
        f"stock ({how}).",
        value=gained.value,
        unit="× stock",
        low=gained.low,
        high=gained.high,
        remedy=f"Train with --set tuned=true, which is {settings} here.",
        caveats=search.group(best).caveats,
    )


def notes(search: Search, losses: int) -> tuple[str, ...]:
    """How the figures were found, and the rule of the curves."""
    return (
        "Every rung is the pooled throughput of all its runs, each a fresh process; ± covers "
        "windows and processes.",
        f"A setting is refused where its mean loss in a quarter of the first {losses} steps, from "
        "the same weights on the same minibatch, is further from the stock setting's than "
        f"{100 * ROUNDING:g} % of the first quarter's, and than {SEEDS} stock runs from other "
        "seeds are from one another (at most half of what the stock loss fell).",
    )
