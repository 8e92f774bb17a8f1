"""Terminal pages of answers, machines and runs.

A Rich console drops colours on a pipe and under NO_COLOR. Rich markup and control characters in
text from outside have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cubemesh.experiments.analysis.roofline_chart import roofline_table
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.schema import Answer, Finding, Machine, RunRecord, Series, Status, Table, Warning
from cubemesh.units import format_seconds
from cubemesh.views import formatting
from cubemesh.views.facts import machine as machine_facts
from cubemesh.views.facts import run as run_facts
from cubemesh.views.json_output import step_statistics

SOFT = "dim"
ACCENT = "green"
CAUTION = "yellow"
FAULT = "red"
_GAP = "  "


def stdout_console() -> Console:
    """The console for data."""
    return Console(highlight=False)


def stderr_console() -> Console:
    """The console for progress and messages."""
    return Console(stderr=True, highlight=False)


def print_answer(console: Console, answer: Answer) -> None:
    """Title, tables, findings, warnings and notes of an answer, without its charts."""
    _line(console, formatting.clean(answer.title), style="bold")
    for table in answer.tables:
        print_table(console, table)
        console.print()
    for finding in answer.findings:
        _print_finding(console, finding)
    print_warnings(console, answer.warnings)
    for note in answer.notes:
        _line(console, formatting.clean(note), style=SOFT)


def print_table(console: Console, table: Table) -> None:
    """A table without lines: text left, figures right, and the reason of a gap across its
    columns."""
    if table.title:
        _line(console, formatting.clean(table.title), style="bold")
    rows = [
        [
            formatting.cell_text(cell, column)
            for cell, column in zip(row, table.columns, strict=True)
        ]
        for row in table.rows
    ]
    tails = [formatting.gap_from(row) for row in table.rows]
    headings = [formatting.heading(column) for column in table.columns]
    numeric = [
        any(row[i].value is not None for row in table.rows) for i in range(len(table.columns))
    ]
    widths = [
        max(
            cell_len(headings[i]),
            *(
                cell_len(row[i])
                for row, tail in zip(rows, tails, strict=True)
                if tail is None or i < tail
            ),
            0,
        )
        for i in range(len(headings))
    ]
    _print_row(console, headings, widths, numeric, style=SOFT)
    for row, tail, cells in zip(rows, tails, table.rows, strict=True):
        if tail is None:
            for i, cell in enumerate(cells):
                if formatting.is_gap(cell) and cell.reason:
                    row[i] = formatting.clean(cell.reason)
            _print_row(console, row, widths, numeric)
            continue
        reason = next(cell.reason for cell in cells[tail:] if cell.reason)
        _print_row(console, row[:tail], widths, numeric, reason=formatting.clean(reason))


def print_machine(console: Console, machine: Machine) -> None:
    """The facts of a machine, and what is unknown with the reason."""
    _line(console, formatting.machine_line(machine), style="bold")
    for group in machine_facts.machine_groups(machine):
        console.print()
        _line(console, group.title, style=ACCENT)
        print_facts(console, group.facts)
    if machine.gpus:
        console.print()
        print_table(console, machine_facts.gpu_table(machine.gpus))
        for sentence in machine_facts.link_sentences(machine.gpu_links):
            _line(console, f"  {sentence}", style=SOFT)
        _print_topology(console, machine)
    if machine.unknown:
        console.print()
        _line(console, "Unknown", style=ACCENT)
        print_facts(
            console, [(formatting.clean(u.what), formatting.clean(u.why)) for u in machine.unknown]
        )


def _print_topology(console: Console, machine: Machine) -> None:
    """Rings and bisection of a machine of several GPUs."""
    if len(machine.gpus) < 2:
        return
    from cubemesh.machines.topology.analysis import analysis_of  # only several GPUs need graphs
    from cubemesh.views.facts.topology import topology_facts

    found = analysis_of(machine)
    if found is not None:
        console.print()
        print_heading(console, "Topology")
        print_facts(console, topology_facts(found))


def print_record(console: Console, record: RunRecord, series: Sequence[Series] = ()) -> None:
    """One run: outcome, figures, settings, step breakdown, phases, telemetry."""
    _line(console, formatting.run_name(record.spec), style="bold")
    if record.ok:
        _line(console, formatting.result_text(record) or formatting.outcome_text(record))
    else:
        _line(console, formatting.outcome_text(record), style=outcome_style(record))
    console.print()
    print_facts(console, run_facts.run_facts(record))
    for title, pairs in (
        ("Settings that differ from the default", formatting.own_settings(record.spec)),
        (
            "Breakdown of the mean step time",
            [
                *(
                    (p.name, f"{p.seconds}, {100 * p.share:.1f} %")
                    for p in run_facts.part_shares(record)
                ),
                *(
                    ("largest overhead", text)
                    for text in (run_facts.bottleneck_text(record),)
                    if text
                ),
            ],
        ),
        *(
            (f"Step time by {formatting.clean(b.name)}", run_facts.breakdown_facts(b))
            for b in record.breakdowns
        ),
        (
            "Files",
            [(formatting.clean(n), formatting.clean(f)) for n, f in record.artifacts.items()],
        ),
        (
            "Phases of the run",
            [(p.name, p.seconds) for p in run_facts.phase_shares(record)],
        ),
        (
            "Telemetry",
            [(run_facts.series_name(one)[0], run_facts.series_note(one)) for one in series],
        ),
    ):
        if pairs:
            console.print()
            _line(console, title, style=ACCENT)
            print_facts(console, pairs)
    if (table := roofline_table(record)) is not None:
        console.print()
        print_table(console, table)
    for table in sweep_tables(record):
        console.print()
        print_table(console, table)
    traceback = record.outcome.facts.get("traceback")
    if traceback:
        console.print()
        for line in str(traceback).splitlines():
            _line(console, f"  {formatting.clean(line)}", style=SOFT)
    print_warnings(console, record.warnings)


def print_results(
    console: Console, records: Iterable[RunRecord], *, filtered: bool = False
) -> None:
    """A line per run: id, time, name, result, outcome; `filtered` if filters were given."""
    rows = []
    styles = []
    for record in records:
        step = step_statistics(record)
        rows.append(
            [
                formatting.clean(record.run_id),
                formatting.clean(record.started_utc[:16].replace("T", " ")),
                formatting.run_name(record.spec),
                formatting.result_text(record),
                format_seconds(step["median"]) if step and step["median"] is not None else "",
                "" if record.ok else formatting.outcome_text(record),
                "!" if record.warnings else "",
            ]
        )
        styles.append("" if record.ok else outcome_style(record))
    if not rows:
        none = "No stored runs. Start with: cubemesh run minibatch"
        _line(console, "No stored run matches." if filtered else none)
        return
    warned = "warnings" if any(row[-1] for row in rows) else ""
    headings = ["id", "started (UTC)", "run", "result", "step", "", warned]
    numeric = [False, False, False, True, True, False, False]
    widths = [
        max(cell_len(text) for text in column) for column in zip(headings, *rows, strict=True)
    ]
    widths[-2] = 0  # outcomes are long and in the last but one column
    _print_row(console, headings, widths, numeric, style=SOFT)
    for row, style in zip(rows, styles, strict=True):
        _print_row(console, row, widths, numeric, style=style)


def print_warnings(console: Console, warnings: Iterable[Warning]) -> None:
    """`! cause: remedy`, the first warning of each code and the number of the others."""
    by_code: dict[str, list[Warning]] = {}
    for warning in warnings:
        by_code.setdefault(warning.code, []).append(warning)
    for warning, *others in by_code.values():
        text = Text("! ", style=f"bold {CAUTION}")
        text.append(formatting.clean(warning.cause), style=CAUTION)
        if others:
            text.append(f" ({len(others)} more)", style=SOFT)
        if warning.remedy:
            text.append(f" {formatting.clean(warning.remedy)}", style="")
        console.print(text, soft_wrap=True)


def outcome_style(record: RunRecord) -> str:
    """Green for ok, plain for an expected outcome, red for a failure."""
    if record.outcome.status is Status.OK:
        return ACCENT
    return "" if record.outcome.status.expected else FAULT


def _print_finding(console: Console, finding: Finding) -> None:
    text = Text(formatting.clean(finding.text))
    if finding.caveats:
        text.append(f" (! {', '.join(finding.caveats)})", style=CAUTION)
    if finding.remedy:
        text.append(f" {formatting.clean(finding.remedy)}", style=ACCENT)
    console.print(text, soft_wrap=True)


def print_heading(console: Console, text: str, *, first: bool = False) -> None:
    """A heading; `first` for the title of the page."""
    _line(console, formatting.clean(text), style="bold" if first else ACCENT)


def print_facts(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    known = list(pairs)
    width = max((cell_len(name) for name, _ in known), default=0)
    for name, value in known:
        line = Text("  ")
        line.append(name + " " * (width - cell_len(name)), style=SOFT)
        line.append(f"{_GAP}{value}")
        console.print(line, soft_wrap=True)


def _print_row(
    console: Console,
    texts: Sequence[str],
    widths: Sequence[int],
    numeric: Sequence[bool],
    *,
    style: str = "",
    reason: str = "",
) -> None:
    cells = []
    for index, (text, width, right) in enumerate(zip(texts, widths, numeric, strict=False)):
        padding = " " * (width - cell_len(text))
        # The first column names the row, so it stands to the left whatever it holds.
        cells.append(padding + text if right and index > 0 else text + padding)
    line = Text("  " + _GAP.join(cells).rstrip(), style=style)
    if reason:
        line = Text("  " + _GAP.join([*cells, ""]))
        line.append(reason, style=SOFT)
    console.print(line, soft_wrap=True)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def print_answers(console: Console, answers: Sequence[Answer]) -> None:
    """Answers one below the other."""
    for index, answer in enumerate(answers):
        if index:
            console.print()
        print_answer(console, answer)
