"""Parts of the report page for its template: cards, sections, charts, tables, runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from cubemesh.api.report import Report
from cubemesh.experiments.analysis.ratios import verdict_text, verdicts
from cubemesh.experiments.analysis.roofline_chart import roofline, roofline_table
from cubemesh.experiments.ceilings.links import link_tables
from cubemesh.experiments.collectives.nccl_rings import nccl_tables
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.measure.attribution.bottlenecks import step_parts
from cubemesh.schema import (
    CONDITION_CODES,
    WARNINGS,
    Answer,
    Chart,
    Curve,
    Figure,
    Finding,
    Machine,
    NetworkWork,
    RunRecord,
    Series,
    Unknown,
    Warning,
)
from cubemesh.schema.answer import is_interval_note
from cubemesh.schema.comparison import Difference
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.store.series_chunks import Samples
from cubemesh.units import format_number
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.charts.files import chart_csv, file_stem, inline_svg
from cubemesh.views.charts.sparkline import sparkline
from cubemesh.views.charts.vega import legend_options, missing_points, vega_lite
from cubemesh.views.facts import run as run_facts
from cubemesh.views.report.headline import Ranked, lead, ranked, split_text
from cubemesh.views.report.timeline import timeline
from cubemesh.views.tables import TextTable, text_table
from cubemesh.views.theme import line_styles, variable

_STATIC_WIDTH = 560
_LETTER_PIXELS, _CELL_PIXELS = 7.4, 20
_HALF_PIXELS = {"half": 500, "half-wide": 690}
"""Class of a table or chart → width that fits half of the page: always, or on a wide screen."""
_LOST = re.compile(r"To train (\S+) with ([^:]+): cubemesh ")
"""Begins the remedy of a loss: the network, and what it is trained with. Its card has the share
that is lost in large print; its bars have the gain."""
_MOST_RATIO = 25
"""A larger ratio is not drawn as bars."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A finding in large print."""

    question: str
    anchor: str
    """Of the section of its answer."""
    figure: str
    unit: str
    interval: str
    conditions: str
    text: str
    remedy: str
    caveats: tuple[tuple[str, str], ...]
    """Warnings of its runs: code, and what it means with its remedy, on the first card that has
    it."""
    verdict: tuple[str, str]
    """Words and class (`good`, `equal` or `low`) of a comparison; ("", "") for none."""
    bars: tuple[tuple[str, float, str], ...]
    """Of a ratio: (name, value, text) of its two sides."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Warnings of one code with every cause."""

    code: str
    label: str
    meaning: str
    seen: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]
    """(cause, remedy, its runs as (id, name)), each cause and remedy once."""

    @property
    def is_condition(self) -> bool:
        """Whether it names a condition of the measurement, and no doubt about the figure."""
        return self.code in CONDITION_CODES


_SIDES = {
    "published-ratio": ("this machine", "published"),
    "largest-loss": ("with the remedy", "without"),
    "further-gain": ("with the change", "without"),
    "machine-ratio": ("this machine", "the other"),
}
"""Code of a ratio → names of its two sides."""
_OTHERS = {"published-ratio": "published", "machine-ratio": "the other machine"}
"""Code of a ratio with a verdict on its card → what it is compared with."""


def cards(answers: Sequence[Answer], records: Iterable[RunRecord] = ()) -> tuple[Card, ...]:
    """A card for every question of the findings, in the order of the answers, from the most
    important finding that has it. The command below the headline is not said again."""
    records = tuple(records)
    order = ranked(answers, records)
    top = next((one.finding for one in order if not one.answer.simulated), None)
    shared = {
        (answer.experiment, f.code): f.question
        for answer in answers
        for f in answer.findings
        if f.question is not None
    }

    def question(answer: Answer, finding: Finding) -> str | None:
        """Of the finding; without one, that of the same code in the same experiment."""
        return finding.question or shared.get((answer.experiment, finding.code))

    best: dict[str | None, Ranked] = {}
    for one in order:
        best.setdefault(question(one.answer, one.finding), one)
    asked = dict.fromkeys(question(answer, f) for answer in answers for f in answer.findings)
    found = [_card(best[q], q, top) for q in asked if q is not None]
    if first := _command(lead(answers, records)[1]):
        found = [replace(c, remedy="") if _command(c.remedy) == first else c for c in found]
    return tuple(_explained_once(found))


def _explained_once(found: Iterable[Card]) -> Iterator[Card]:
    """The cards, each warning explained on the first that has it."""
    seen: set[str] = set()
    for card in found:
        yield replace(
            card,
            caveats=tuple((code, "" if code in seen else words) for code, words in card.caveats),
        )
        seen |= {code for code, _ in card.caveats}


def caveats(finding: Finding, answer: Answer) -> tuple[tuple[str, str], ...]:
    """Warnings of a finding: code, and what it means with the first remedy in the answer."""
    remedies = {warning.code: warning.remedy for warning in reversed(answer.warnings)}
    return tuple(
        (
            clean(code),
            f"{WARNINGS.get(code, code).capitalize()}. {clean(remedies.get(code, ''))}".strip(),
        )
        for code in finding.caveats
    )


def _command(remedy: str) -> str:
    """The command of a remedy; empty for none."""
    return "".join(remedy.partition("cubemesh ")[1:])


def _card(one: Ranked, question: str, top: Finding | None) -> Card:
    finding = one.finding
    figure, unit, interval = "", "", ""
    if finding.value is not None:
        figure, unit, interval = formatting.split_figure(
            finding.value, finding.unit, finding.low, finding.high
        )
    bars = _bars(finding)
    if finding.code == "largest-loss" and bars and (lost := _LOST.match(finding.remedy)):
        share = 1 - 1 / max(1.0, finding.value or 1.0)
        figure, unit, interval = f"{100 * share:.0f} %", f"of {clean(lost[1])}", ""
        bars = ((clean(lost[2]), *bars[0][1:]), *bars[1:])
    title, conditions, rest = split_text(finding)
    text = rest or (clean(one.answer.title) if finding is top else title)
    return Card(
        question=clean(question),
        anchor=f"question-{one.index}",
        figure=figure,
        unit=unit,
        interval=interval,
        conditions=conditions,
        text=text,
        remedy=clean(finding.remedy),
        caveats=caveats(finding, one.answer),
        verdict=_verdict(finding),
        bars=bars,
    )


def _verdict(finding: Finding) -> tuple[str, str]:
    """A published figure or another machine compared: the verdict of the finding, as its answer
    has it, in words."""
    other, value = _OTHERS.get(finding.code), finding.value
    if other is None or value is None:
        return "", ""
    judged = finding.verdict or _single_verdict(finding)
    if judged == Difference.FASTER:
        above = f"{100 * (value - 1):.0f} % above" if value < 2 else f"{value:.3g} × as fast as"
        return f"{above} {other}", "good"
    if judged == Difference.SLOWER:
        return f"{100 * (1 - value):.0f} % below {other}", "low"
    if judged.startswith(Difference.NOT_SIGNIFICANT):
        least = judged.removeprefix(Difference.NOT_SIGNIFICANT).strip(" ()")
        return f"{Difference.NOT_SIGNIFICANT} from {other}{least and f': {least}'}", "equal"
    return clean(judged), "equal" if judged else ""


def _single_verdict(finding: Finding) -> str:
    """The verdict of a ratio that is judged with no other; empty without an interval."""
    if finding.value is None or finding.low is None or finding.high is None:
        return ""
    figure = Figure(value=finding.value, unit=finding.unit, low=finding.low, high=finding.high)
    return verdict_text(figure, verdicts([figure])[0])


def _bars(finding: Finding) -> tuple[tuple[str, float, str], ...]:
    names = _SIDES.get(finding.code)
    if names is None or finding.value is None or not 0 < finding.value < _MOST_RATIO:
        return ()
    longest = max(finding.value, 1.0)
    figure = formatting.split_figure(finding.value, "×", finding.low, finding.high)[0]
    sides = zip(names, (finding.value, 1.0), (figure, "1×"), strict=True)
    return tuple((name, v / longest, text) for name, v, text in sides)


def section(
    index: int,
    answer: Answer,
    records: Mapping[str, RunRecord],
    machine: Machine,
    *,
    prefix: str = "question",
) -> dict[str, Any]:
    """The section of an answer; `index` (from 1) makes its anchor unique. Its findings (`words`),
    charts and tables have the classes of their widths."""
    charts = [drawn(chart, caption(chart, answer, records, machine)) for chart in answer.charts]
    tables = [text_table(table) for table in answer.tables]
    widths = [_width(table) for table in tables]
    return {
        "anchor": f"{prefix}-{index}",
        "answer": answer,
        "findings": answer.findings,
        # An odd number of charts leaves room for the findings.
        "notes": [note for note in answer.notes if not is_interval_note(note)],
        "words": "half" if len(charts) % 2 else "full" if charts or not widths else widths[0],
        "charts": charts,
        "tables": list(zip(tables, widths, strict=True)),
        "chips": chips(answer.warnings, [records[i] for i in answer.run_ids if i in records]),
    }


def names(report: Report) -> tuple[str, ...]:
    """The names of the machines of a page: those of a comparison say what differs."""
    if report.against is None:
        return (formatting.machine_name(report.machine),)
    return tuple(map(clean, report.names))


def measured(report: Report) -> str:
    """`measured 21 Nov 2026 to 23 Nov 2026`: the dates of the runs on this machine; empty without
    runs."""
    records = tuple(report.records.values())
    return f"measured {_dates(records)[0]}" if records else ""


def sections(report: Report) -> list[dict[str, Any]]:
    """The sections of a report: its answers, each with that of the other machine next to it
    (`partner`), then the other machine's remaining answers."""
    other = report.against
    found = [
        section(i, answer, report.records, report.machine) | {"partner": None, "of": ""}
        for i, answer in enumerate(report.answers, start=1)
    ]
    if other is None:
        if len(found) == 1:
            found[0]["findings"] = _below_cards(report)
            if not found[0]["findings"]:
                found[0]["words"] = "full"
                if len(found[0]["charts"]) == 1:
                    found[0]["charts"][0]["width"] = "full"
        return found
    partners = {id(one): two for one, two in report.partners}
    for i, (answer, own) in enumerate(zip(report.answers, found, strict=True), start=1):
        partner = partners.pop(id(answer), None)
        if partner is not None:
            own["partner"] = section(i, partner, other.records, other.machine, prefix="other")
    shown = {id(two) for _, two in report.partners}
    rest = [answer for answer in other.answers if id(answer) not in shown]
    return found + [
        section(i, answer, other.records, other.machine, prefix="rest")
        | {"partner": None, "of": names(report)[1]}
        for i, answer in enumerate(rest, start=1)
    ]


def _below_cards(report: Report) -> tuple[Finding, ...]:
    """The findings of the only answer that the headline and its cards do not have already."""
    (answer,) = report.answers
    records = tuple(report.records.values())
    told, shown = lead(report.answers, records), {c.text for c in cards(report.answers, records)}
    return tuple(
        finding
        for finding in answer.findings
        if shown.isdisjoint(filter(None, split_text(finding)))
        and not (clean(finding.text).endswith(told[0]) and clean(finding.remedy) == told[1])
    )


def contents(report: Report, found: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Anchor and title of every section."""
    own = [
        (s["anchor"], clean(" · ".join(filter(None, (s["answer"].title, s["of"]))))) for s in found
    ]
    return (
        *own,
        ("machine", "Machine" if report.against is None else "Machines"),
        ("runs", "Runs"),
    )


def caption(
    chart: Chart, answer: Answer, records: Mapping[str, RunRecord], machine: Machine
) -> str:
    """`vm · NVIDIA H200 · bf16 · 21 Nov 2026`: machine, device, precision and date of the runs of a
    chart; empty without runs."""
    ids = dict.fromkeys(p.run_id for line in chart.lines for p in line.points)
    own = [records[i] for i in ids if i in records]
    own = own or [records[i] for i in answer.run_ids if i in records]
    if not own:
        return ""
    networks = [r for r in own if isinstance(r.spec.work, NetworkWork)]
    parts = [machine.hostname, *_devices(own, machine)]
    parts += sorted({r.spec.program.precision for r in networks})
    parts += _dates(own)
    if answer.simulated:
        parts.append("simulated")
    return clean(" · ".join(parts))


def _devices(records: Sequence[RunRecord], machine: Machine) -> list[str]:
    """Names of the devices that ran; of a processor its model."""
    counts: dict[str, set[int]] = {}
    for record in records:
        kinds = {rank.device.partition(":")[0] for rank in record.ranks}
        names = {rank.device_name for rank in record.ranks if rank.device_name}
        if not names and "cpu" in kinds:
            names = {machine.cpu.model or "CPU"}
        elif not names and machine.gpus:
            names = {gpu.name for gpu in machine.gpus}
        for name in sorted(names):
            counts.setdefault(name, set()).add(record.spec.placement.devices)
    return [
        name
        if max(own) == 1 or name == machine.cpu.model
        else f"{'' if len(own) == 1 else 'up to '}{max(own)} × {name}"
        for name, own in counts.items()
    ]


def _dates(records: Sequence[RunRecord]) -> list[str]:
    days = sorted({record.started_utc[:10] for record in records})
    shown = [formatting.day(day) for day in dict.fromkeys((days[0], days[-1]))]
    return [" to ".join(shown)]


def drawn(chart: Chart, caption: str = "") -> dict[str, Any]:
    """A chart as a specification for the browser, and as SVG for a page without scripts.

    `saved` is what the browser adds to save it as a file: titles, legend, and its data as CSV.
    """
    spec = vega_lite(chart, width="container", legend=False, title=False)
    still = {name: value for name, value in spec.items() if name != "autosize"}
    names = [clean(line.name) for line in chart.lines]
    heat = chart.kind == "heat"  # its rows have their names
    lines = f"{'row' if heat else 'line'}{'' if len(names) == 1 else 's'}"
    return {
        "title": clean(chart.title),
        "caption": caption,
        "kind": chart.kind,
        "width": "half",
        "summary": f"{clean(chart.title)}: {formatting.axis_title(chart.y)} against "
        f"{formatting.axis_title(chart.x)}, {len(names)} {lines}. Figures: see the table.",
        "spec": spec,
        "saved": {
            "name": file_stem(chart),
            "title": clean(chart.title),
            "caption": caption,
            "legend": legend_options(chart) if len(names) > 1 and not heat else None,
            "csv": chart_csv(chart),
        },
        "svg": Markup(inline_svg(still | {"width": _STATIC_WIDTH})),
        "legend": tuple(zip(names, line_styles(chart.lines), strict=True))
        if len(names) > 1 and not heat
        else (),
        "missing": _gathered(missing_points(chart)),
    }


def _gathered(missing: Sequence[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Missing points of one line with one reason, merged."""
    places: dict[tuple[str, str], list[str]] = {}
    for line, x, reason in missing:
        places.setdefault((line, reason), []).append(x)
    return tuple((line, "; ".join(xs), reason) for (line, reason), xs in places.items())


def _width(table: TextTable) -> str:
    """`half` for a table that fits half of the page, `half-wide` for one that does on a wide
    screen, otherwise `full`."""
    columns = [len(text) for text, _ in table.headings]
    for row in table.rows:
        for i, cell in enumerate(row):
            if cell.span == 1 and not cell.gap:
                columns[i] = max(columns[i], len(cell.text))
    pixels = sum(letters * _LETTER_PIXELS + _CELL_PIXELS for letters in columns)
    fits = (name for name, most in _HALF_PIXELS.items() if pixels <= most)
    return next(fits, "full")


def chips(warnings: Iterable[Warning], records: Sequence[RunRecord] = ()) -> tuple[Chip, ...]:
    """One chip per code, in the order of the warnings, with those of `records` that have it."""
    runs: dict[Warning, dict[str, str]] = {}
    for record in records:
        for warning in record.warnings:
            name = formatting.run_name(record.spec)
            runs.setdefault(warning, {})[record.run_id] = name
    by_code: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for warning in warnings:
        seen = by_code.setdefault(warning.code, {})
        words = clean(warning.cause), clean(warning.remedy)
        seen.setdefault(words, {}).update(runs.get(warning, {}))
    return tuple(
        Chip(
            code=clean(code),
            label=clean(code).replace("-", " "),
            meaning=WARNINGS.get(code, ""),
            seen=tuple((*words, tuple(of.items())) for words, of in seen.items()),
        )
        for code, seen in by_code.items()
    )


@dataclass(frozen=True, kw_only=True)
class SmallChart:
    """A sparkline with its title and its range."""

    title: str
    svg: Markup
    note: str


def run_entry(
    record: RunRecord,
    series: Sequence[Series | Samples],
    unmeasured: Collection[Unknown] = (),
    *,
    packed: bool = False,
) -> dict[str, Any]:
    """The entry of a run, without what is `unmeasured` in several; each phase, and each part of
    the step, with the CSS variable of its colour. The details of a `packed` one are compressed in
    the page."""
    steps = [window.step_s for window in record.measured]
    spark = _steps_spark(steps, "step time of each window", width=120, height=26)
    return {
        "record": record,
        "packed": packed,
        "name": formatting.run_name(record.spec),
        "outcome": formatting.outcome_text(record),
        "ending": STATUS_WORDS[record.outcome.status],
        "result": formatting.result_text(record),
        "spark": Markup(spark),
        "facts": run_facts.run_facts(record, unmeasured),
        "settings": formatting.own_settings(record.spec),
        "phases": tuple(
            (phase, variable(_PHASE_COLOURS.get(phase.name, "c6")))
            for phase in run_facts.phase_shares(record)
        ),
        "parts": tuple(
            (part, variable(_PART_COLOURS[named.name]))
            for part, named in zip(run_facts.part_shares(record), step_parts(record), strict=True)
        ),
        "parts_title": run_facts.parts_title(record),
        "bottleneck": run_facts.bottleneck_text(record),
        "breakdowns": tuple(
            (f"Step time by {clean(b.name)}", run_facts.breakdown_facts(b))
            for b in record.breakdowns
        ),
        "roofline": _roofline(record),
        "losses": None if (table := roofline_table(record)) is None else text_table(table),
        "sweep": tuple(
            text_table(table)
            for table in (
                *sweep_tables(record),
                *nccl_tables([record]),
                *link_tables([record]),
            )
        ),
        "small": tuple(_small(record)),
        "timeline": timeline(record, series, letters=packed),
        "chips": chips(record.warnings),
        "traceback": clean(str(record.outcome.facts.get("traceback", ""))),
    }


def _roofline(record: RunRecord) -> Markup:
    chart = roofline(record)
    return Markup(inline_svg(vega_lite(chart, title=False))) if chart else Markup("")


def _steps_spark(steps: Sequence[float], label: str, *, width: int, height: int) -> str:
    """Step times on a scale of at least ± 20 %, so that noise looks small."""
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
    "cpu_contention": "c7",
    "input_contention": "c8",
    "unattributed": "published",
}


def _small(record: RunRecord) -> list[SmallChart]:
    charts = []
    steps = [window.step_s for window in record.measured]
    if len(steps) > 1:
        ends = [formatting.quantity(end, "s") for end in (min(steps), max(steps))]
        note = f"{ends[0]} to {ends[1]}"
        svg = _steps_spark(steps, f"step time by window: {note}", width=220, height=48)
        charts.append(SmallChart(title="step time by window", svg=Markup(svg), note=note))
    # Telemetry is drawn in the timeline.
    charts += [_curve(curve) for curve in record.curves if curve.name not in record.series]
    return [chart for chart in charts if chart.svg]


def _curve(curve: Curve) -> SmallChart:
    title = formatting.words(f"{curve.name} by {curve.x_name}")
    ends = f"{format_number(curve.y[0])} to {format_number(curve.y[-1])}" if curve.y else ""
    svg = sparkline(curve.y, label=f"{title}: {ends}", width=220, height=48)
    return SmallChart(title=title, svg=Markup(svg), note=ends)
