"""How do answers, machines and runs read in a terminal?

Everything goes through a Rich console, which drops colours on a pipe and under NO_COLOR. Text
from outside is printed as text: neither Rich's markup nor control characters in it have effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cubemesh.experiments.analysis.roofline import losses
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.schema import Answer, Finding, Machine, RunRecord, Series, Status, Table, Warning
from cubemesh.units import format_seconds
from cubemesh.views import formatting as wording
from cubemesh.views.facts import machine as machine_facts
from cubemesh.views.facts import run as run_facts
from cubemesh.views.json_output import step_statistics

SOFT = "dim"
ACCENT = "green"
CAUTION = "yellow"
FAULT = "red"
_GAP = "  "


def stdout_console() -> Console:
    """Where data goes."""
    return Console(highlight=False)


def stderr_console() -> Console:
    """Where progress and messages go."""
    return Console(stderr=True, highlight=False)


def print_answer(console: Console, answer: Answer) -> None:
    """What was compared, the tables, then what was found, what to doubt, and what to know.

    Charts are left to the page; a chart's missing points stand in the table with their reason.
    """
    _line(console, wording.clean(answer.title), style="bold")
    for table in answer.tables:
        print_table(console, table)
        console.print()
    for finding in answer.findings:
        _print_finding(console, finding)
    print_warnings(console, answer.warnings)
    for note in answer.notes:
        _line(console, wording.clean(note), style=SOFT)


def print_table(console: Console, table: Table) -> None:
    """A table without lines: names to the left, figures to the right, and where a row has no
    figures the reason across its columns."""
    if table.title:
        _line(console, wording.clean(table.title), style="bold")
    rows = [
        [wording.cell_text(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    tails = [wording.gap_from(row) for row in table.rows]
    headings = [wording.heading(column) for column in table.columns]
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
                if wording.is_gap(cell) and cell.reason:
                    row[i] = wording.clean(cell.reason)
            _print_row(console, row, widths, numeric)
            continue
        reason = next(cell.reason for cell in cells[tail:] if cell.reason)
        _print_row(console, row[:tail], widths, numeric, reason=wording.clean(reason))


def print_machine(console: Console, machine: Machine) -> None:
    """All that was found out about a machine, and what was not."""
    _line(console, wording.machine_line(machine), style="bold")
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
        _line(console, "Not known", style=ACCENT)
        print_facts(
            console, [(wording.clean(u.what), wording.clean(u.why)) for u in machine.unknown]
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
    """One run: how it ended, its figures, its settings, where its time went."""
    _line(console, wording.run_name(record.spec), style="bold")
    if record.ok:
        _line(console, wording.result_text(record) or wording.outcome_text(record))
    else:
        _line(console, wording.outcome_text(record), style=outcome_style(record))
    console.print()
    print_facts(console, run_facts.run_facts(record))
    for title, pairs in (
        ("Settings that differ from the default", wording.own_settings(record.spec)),
        (
            "Where the step's time goes",
            [
                *(
                    (p.name, f"{p.seconds}, {100 * p.share:.1f} %")
                    for p in run_facts.part_shares(record)
                ),
                *(("biggest loss", text) for text in (run_facts.loss_sentence(record),) if text),
            ],
        ),
        *(
            (f"Time of a step by {wording.clean(b.name)}", run_facts.breakdown_facts(b))
            for b in record.breakdowns
        ),
        ("Files", [(wording.clean(n), wording.clean(f)) for n, f in record.artifacts.items()]),
        (
            "Where the run's time went",
            [(p.name, p.seconds) for p in run_facts.phase_shares(record)],
        ),
        (
            "Sampled beside it",
            [(run_facts.series_name(one)[0], run_facts.series_note(one)) for one in series],
        ),
    ):
        if pairs:
            console.print()
            _line(console, title, style=ACCENT)
            print_facts(console, pairs)
    if (table := losses(record)) is not None:
        console.print()
        print_table(console, table)
    for table in sweep_tables(record):
        console.print()
        print_table(console, table)
    traceback = record.outcome.facts.get("traceback")
    if traceback:
        console.print()
        for line in str(traceback).splitlines():
            _line(console, f"  {wording.clean(line)}", style=SOFT)
    print_warnings(console, record.warnings)


def print_results(
    console: Console, records: Iterable[RunRecord], *, filtered: bool = False
) -> None:
    """A line for every run: when, what, how fast, how it ended; `filtered` says that there may be
    others."""
    rows = []
    styles = []
    for record in records:
        step = step_statistics(record)
        rows.append(
            [
                wording.clean(record.run_id),
                wording.clean(record.started_utc[:16].replace("T", " ")),
                wording.run_name(record.spec),
                wording.result_text(record),
                format_seconds(step["median"]) if step and step["median"] is not None else "",
                "" if record.ok else wording.outcome_text(record),
                "!" if record.warnings else "",
            ]
        )
        styles.append("" if record.ok else outcome_style(record))
    if not rows:
        none = "No runs are stored here. `cubemesh run minibatch` makes the first ones."
        _line(console, "No stored run is like that." if filtered else none)
        return
    warned = "warned" if any(row[-1] for row in rows) else ""
    headings = ["run", "started (UTC)", "what", "result", "step", "", warned]
    numeric = [False, False, False, True, True, False, False]
    widths = [
        max(cell_len(text) for text in column) for column in zip(headings, *rows, strict=True)
    ]
    widths[-2] = 0  # endings are sentences, and the last but one column: let them run on
    _print_row(console, headings, widths, numeric, style=SOFT)
    for row, style in zip(rows, styles, strict=True):
        _print_row(console, row, widths, numeric, style=style)


def print_warnings(console: Console, warnings: Iterable[Warning]) -> None:
    """`! cause: remedy`, one for each code: the first, and how many more there are of it."""
    by_code: dict[str, list[Warning]] = {}
    for warning in warnings:
        by_code.setdefault(warning.code, []).append(warning)
    for warning, *others in by_code.values():
        text = Text("! ", style=f"bold {CAUTION}")
        text.append(wording.clean(warning.cause), style=CAUTION)
        if others:
            text.append(f" ({len(others)} more like this)", style=SOFT)
        if warning.remedy:
            text.append(f" {wording.clean(warning.remedy)}", style="")
        console.print(text, soft_wrap=True)


def outcome_style(record: RunRecord) -> str:
    """Green for a figure, plain for an ending that is an answer, red for a fault."""
    if record.outcome.status is Status.OK:
        return ACCENT
    return "" if record.outcome.status.expected else FAULT


def _print_finding(console: Console, finding: Finding) -> None:
    text = Text(wording.clean(finding.text))
    if finding.caveats:
        text.append(f" (! {', '.join(finding.caveats)})", style=CAUTION)
    if finding.remedy:
        text.append(f" {wording.clean(finding.remedy)}", style=ACCENT)
    console.print(text, soft_wrap=True)


def print_heading(console: Console, text: str, *, first: bool = False) -> None:
    """A line above what follows; `first` for what all of it is about."""
    _line(console, wording.clean(text), style="bold" if first else ACCENT)


def print_facts(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, the values below one another."""
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
