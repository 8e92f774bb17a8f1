"""What does the page say about one run?

Its ending and speed in a line, then where its time went, what was sampled beside it, and every
setting that is not the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from cubemesh.experiments.analysis.roofline import losses, roofline
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.schema import Curve, RunRecord, Series
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.units import format_number
from cubemesh.views import formatting as wording
from cubemesh.views.charts.files import inline_svg
from cubemesh.views.charts.sparkline import sparkline
from cubemesh.views.charts.vega import vega_lite
from cubemesh.views.facts import run as run_facts
from cubemesh.views.facts.run import PartShare, PhaseShare
from cubemesh.views.report.page import Chip, PrintedTable, chips, printed
from cubemesh.views.report.timeline import Timeline, timeline
from cubemesh.views.theme import variable


@dataclass(frozen=True, kw_only=True)
class SmallChart:
    """Something sampled or counted, with what its ends are."""

    title: str
    svg: Markup
    note: str


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run as the page shows it."""

    record: RunRecord
    name: str
    outcome: str
    ending: str
    result: str
    spark: Markup
    facts: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    phases: tuple[tuple[PhaseShare, str], ...]
    """Each with the CSS variable of its colour."""
    parts: tuple[tuple[PartShare, str], ...]
    """The same for the parts of the step."""
    loss: str
    """The biggest of them that is a loss, with its remedy."""
    breakdowns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """(title, its longest rows)."""
    roofline: Markup
    """The layers under the roof, drawn; empty where layers were not timed."""
    losses: PrintedTable | None
    """Those that lose most."""
    sweep: tuple[PrintedTable, ...]
    """What a collective took at each size."""
    small: tuple[SmallChart, ...]
    timeline: Timeline | None
    chips: tuple[Chip, ...]
    traceback: str


def shown_run(record: RunRecord, series: Sequence[Series]) -> ShownRun:
    """The run with all that is known of it."""
    steps = [window.step_s for window in record.measured]
    spark = _steps_spark(steps, "step time of each window", width=120, height=26)
    return ShownRun(
        record=record,
        name=wording.run_name(record.spec),
        outcome=wording.outcome_text(record),
        ending=STATUS_WORDS[record.outcome.status],
        result=wording.result_text(record),
        spark=Markup(spark),
        facts=run_facts.run_facts(record),
        settings=wording.own_settings(record.spec),
        phases=tuple(
            (phase, variable(_PHASE_COLOURS.get(phase.name, "c6")))
            for phase in run_facts.phase_shares(record)
        ),
        parts=tuple(
            (part, variable(_PART_COLOURS[named.name]))
            for part, named in zip(run_facts.part_shares(record), record.parts, strict=True)
        ),
        loss=run_facts.loss_sentence(record),
        breakdowns=tuple(
            (f"Time of a step by {wording.clean(b.name)}", run_facts.breakdown_facts(b))
            for b in record.breakdowns
        ),
        roofline=_roofline(record),
        losses=None if (table := losses(record)) is None else printed(table),
        sweep=tuple(map(printed, sweep_tables(record))),
        small=tuple(_small(record)),
        timeline=timeline(record, series),
        chips=chips(record.warnings),
        traceback=wording.clean(str(record.outcome.facts.get("traceback", ""))),
    )


def _roofline(record: RunRecord) -> Markup:
    chart = roofline(record)
    return Markup(inline_svg(vega_lite(chart, title=False))) if chart else Markup("")


def _steps_spark(steps: Sequence[float], label: str, *, width: int, height: int) -> str:
    """Step times, on a scale of ± 20 % at least: noise must not look like news."""
    if not steps:
        return ""
    middle = sorted(steps)[len(steps) // 2]
    low, high = min(*steps, 0.8 * middle), max(*steps, 1.2 * middle)
    return sparkline(steps, label=label, width=width, height=height, low=low, high=high)


_PHASE_COLOURS: Mapping[str, str] = {
    "import": "published",
    "build": "c3",
    "compile": "c2",
    "warm-up": "c4",
    "measure": "c1",
    "evaluate": "c5",
}


_PART_COLOURS: Mapping[str, str] = {
    "compute": "c1",
    "exposed_communication": "c5",
    "input_stall": "c2",
    "launch_gaps": "c3",
    "straggler_wait": "c6",
    "host": "c4",
    "other": "published",
}


def _small(record: RunRecord) -> list[SmallChart]:
    charts = []
    steps = [window.step_s for window in record.measured]
    if len(steps) > 1:
        ends = [wording.quantity(end, "s") for end in (min(steps), max(steps))]
        note = f"{ends[0]} to {ends[1]}"
        svg = _steps_spark(steps, f"step time by window: {note}", width=220, height=48)
        charts.append(SmallChart(title="step time by window", svg=Markup(svg), note=note))
    # What was sampled is drawn already, over the whole run.
    charts += [_curve(curve) for curve in record.curves if curve.name not in record.series]
    return [chart for chart in charts if chart.svg]


def _curve(curve: Curve) -> SmallChart:
    title = wording.words(f"{curve.name} by {curve.x_name}")
    ends = f"{format_number(curve.y[0])} to {format_number(curve.y[-1])}" if curve.y else ""
    svg = sparkline(curve.y, label=f"{title}: {ends}", width=220, height=48)
    return SmallChart(title=title, svg=Markup(svg), note=ends)
