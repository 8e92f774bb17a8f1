"""Terminal pages of answers, machines and runs.

A Rich console drops colours on a pipe and under NO_COLOR. Rich markup and control characters in
text from outside have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cubemesh.experiments.analysis.roofline_chart import roofline_table
from cubemesh.experiments.ceilings.links import link_tables
from cubemesh.experiments.collectives.nccl_rings import nccl_tables
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.schema import Answer, Finding, Machine, RunRecord, Series, Status, Table, Warning
from cubemesh.statistics import median
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.facts import machine as machine_facts
from cubemesh.views.facts import run as run_facts
from cubemesh.views.tables import GAP, TextTable, text_table

if TYPE_CHECKING:
    from cubemesh.api.probe import StackComparison
    from cubemesh.experiments.runner import ExperimentResult

SOFT = "dim"
ACCENT = "green"
CAUTION = "yellow"
FAULT = "red"
_SPACE = "  "


def stdout_console() -> Console:
    """The console for data."""
    return Console(highlight=False)


def stderr_console() -> Console:
    """The console for progress and messages."""
    return Console(stderr=True, highlight=False)


def print_answer(console: Console, answer: Answer) -> None:
    """Title, tables, findings, warnings and notes of an answer, without its charts."""
    _line(console, clean(answer.title), style="bold")
    for table in answer.tables:
        print_table(console, table)
        console.print()
    for finding in answer.findings:
        _print_finding(console, finding)
    print_warnings(console, answer.warnings)
    for note in answer.notes:
        _line(console, clean(note), style=SOFT)


def print_table(console: Console, table: Table) -> None:
    """A table without lines: text left, figures right, and the reason of a gap across its
    columns."""
    shown = text_table(table)
    if shown.title:
        _line(console, shown.title, style="bold")
    headings = [text for text, _ in shown.headings]
    numeric = [number for _, number in shown.headings]
    columns = _columns(shown)
    widths: Sequence[int] = [max(map(cell_len, column)) for column in columns]
    wrap = console.is_terminal
    if wrap:
        widths = fitted_widths(columns, widths, console.width)
    _print_row(console, headings, widths, numeric, style=SOFT, wrap=wrap)
    for row in shown.rows:
        *cells, last = [cell.text for cell in row]
        if row[-1].gap and last != GAP:
            _print_row(console, cells, widths, numeric, reason=last, wrap=wrap)
        else:
            _print_row(console, [*cells, last], widths, numeric, wrap=wrap)


def table_width(table: Table) -> int:
    """Characters of a row of the table where nothing wraps."""
    widths = [max(map(cell_len, column)) for column in _columns(text_table(table))]
    return len(_SPACE) * len(widths) + sum(widths)


def _columns(shown: TextTable) -> list[list[str]]:
    """The texts of each column, its heading first."""
    return [
        [heading, *(row[i].text for row in shown.rows if i < len(row) and not row[i].gap)]
        for i, (heading, _) in enumerate(shown.headings)
    ]


def fitted_widths(
    columns: Sequence[Sequence[str]], widths: Sequence[int], width: int
) -> Sequence[int]:
    """Widths of columns for a table of at most `width` characters: the widest columns wrap between
    words, or if need be after a hyphen. The given widths where that is not enough."""
    excess = len(_SPACE) * len(columns) + sum(widths) - width
    for parts in (_words, _pieces):
        least = [
            max((cell_len(part) for text in column for part in parts(text)), default=0)
            for column in columns
        ]
        if excess > sum(widths) - sum(least):
            continue
        fitted = list(widths)
        for _ in range(excess):
            slack = [i for i, low in enumerate(least) if fitted[i] > low]
            fitted[max(slack, key=fitted.__getitem__)] -= 1
        return fitted
    return widths


def _words(text: str) -> Sequence[str]:
    """The words of a text; `3.5 ± 0.2` and `2 %` are one."""
    return re.split(r"(?<!±) +(?![±%])", text)


def _pieces(text: str) -> Sequence[str]:
    """Its words, and the parts of those with hyphens."""
    return [part for word in _words(text) for part in re.findall(r"[^\s_-]*[_-]+(?=\w)|\S.*", word)]


def print_machine(console: Console, machine: Machine) -> None:
    """The facts of a machine, and what is unknown with the reason."""
    _line(console, formatting.machine_line(machine), style="bold")
    for group in machine_facts.machine_groups(machine):
        print_section(console, group.title, group.facts)
    if machine.gpus:
        console.print()
        print_table(console, machine_facts.gpu_table(machine.gpus))
        for sentence in machine_facts.link_sentences(machine.gpu_links):
            _line(console, f"  {sentence}", style=SOFT)
    topology = machine_facts.gpu_topology(machine)
    if topology is not None:
        from cubemesh.views.facts.topology import topology_facts  # loads networkx

        print_section(console, "Topology", topology_facts(topology))
    unknown = [(clean(u.what), clean(u.why)) for u in machine.unknown]
    print_section(console, "Unknown", unknown)


def print_stack_comparison(console: Console, found: StackComparison) -> None:
    """What differs between a recorded stack and that of this machine."""
    other = found.recorded
    place = "the same hardware" if found.same_hardware else "other hardware"
    _line(
        console,
        f"{clean(other.hostname)} ({other.machine_id}, {place}) of {clean(found.source)}, compared "
        f"with this machine ({found.own.machine_id})",
        style="bold",
    )
    console.print()
    if found.differences:
        print_table(console, machine_facts.difference_table(found.differences))
    else:
        _line(console, "The two stacks do not differ.")


def print_record(console: Console, record: RunRecord, series: Sequence[Series] = ()) -> None:
    """One run: outcome, figures, settings, step breakdown, phases, telemetry."""
    _line(console, formatting.run_name(record.spec), style="bold")
    if record.ok:
        _line(console, formatting.result_text(record) or formatting.outcome_text(record))
    else:
        _line(console, formatting.outcome_text(record), style=outcome_style(record))
    console.print()
    print_facts(console, run_facts.run_facts(record))
    parts = [
        (part.name, f"{part.seconds}, {100 * part.share:.1f} %")
        for part in run_facts.part_shares(record)
    ]
    if bottleneck := run_facts.bottleneck_text(record):
        parts.append(("largest overhead", bottleneck))
    files = [(clean(n), clean(f)) for n, f in record.artifacts.items()]
    phases = [(phase.name, phase.seconds) for phase in run_facts.phase_shares(record)]
    telemetry = [(run_facts.series_name(s)[0], run_facts.series_note(s)) for s in series]
    for title, facts in (
        ("Settings that differ from the default", formatting.own_settings(record.spec)),
        (run_facts.parts_title(record), parts),
        *(
            (f"Step time by {clean(b.name)}", run_facts.breakdown_facts(b))
            for b in record.breakdowns
        ),
        ("Files", files),
        ("Phases of the run", phases),
        ("Telemetry", telemetry),
    ):
        print_section(console, title, facts)
    if (table := roofline_table(record)) is not None:
        console.print()
        print_table(console, table)
    for table in (*sweep_tables(record), *nccl_tables([record]), *link_tables([record])):
        console.print()
        print_table(console, table)
    traceback = record.outcome.facts.get("traceback")
    if traceback:
        console.print()
        for line in str(traceback).splitlines():
            _line(console, f"  {clean(line)}", style=SOFT)
    print_warnings(console, record.warnings)


def print_results(
    console: Console, records: Iterable[RunRecord], *, filtered: bool = False
) -> None:
    """A line per run: id, time, name, result, outcome; `filtered` if filters were given."""
    rows = []
    styles = []
    shown: set[str] = set()
    for record in records:
        steps = [window.step_s for window in record.measured]
        rows.append(
            [
                clean(record.run_id),
                clean(record.started_utc[:16].replace("T", " ")),
                formatting.run_name(record.spec),
                formatting.result_text(record),
                format_seconds(median(steps)) if steps else "",
                "" if record.ok else formatting.ending(record, shown),
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
        text.append(clean(warning.cause), style=CAUTION)
        if others:
            text.append(f" ({len(others)} more)", style=SOFT)
        if warning.remedy:
            text.append(f" {clean(warning.remedy)}", style="")
        console.print(text, soft_wrap=True)


def outcome_style(record: RunRecord) -> str:
    """Green for ok, plain for an expected outcome, red for a failure."""
    if record.outcome.status is Status.OK:
        return ACCENT
    return "" if record.outcome.status.expected else FAULT


def _print_finding(console: Console, finding: Finding) -> None:
    text = Text(clean(finding.text))
    if finding.caveats:
        text.append(f" (! {', '.join(finding.caveats)})", style=CAUTION)
    if finding.remedy:
        text.append(f" {clean(finding.remedy)}", style=ACCENT)
    console.print(text, soft_wrap=True)


def print_section(console: Console, title: str, facts: Sequence[tuple[str, str]]) -> None:
    """A heading and its facts below an empty line; nothing without facts."""
    if facts:
        console.print()
        _line(console, title, style=ACCENT)
        print_facts(console, facts)


def print_facts(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    known = list(pairs)
    width = max((cell_len(name) for name, _ in known), default=0)
    for name, value in known:
        line = Text("  ")
        line.append(name + " " * (width - cell_len(name)), style=SOFT)
        line.append(f"{_SPACE}{value}")
        console.print(line, soft_wrap=True)


def _print_row(
    console: Console,
    texts: Sequence[str],
    widths: Sequence[int],
    numeric: Sequence[bool],
    *,
    style: str = "",
    reason: str = "",
    wrap: bool = False,
) -> None:
    wrapped = [
        _wrapped(text, width) if wrap else [text]
        for text, width in zip(texts, widths, strict=False)
    ]
    for place in range(max(map(len, wrapped), default=1)):
        cells = []
        for index, (lines, width, right) in enumerate(zip(wrapped, widths, numeric, strict=False)):
            text = lines[place] if place < len(lines) else ""
            padding = " " * (width - cell_len(text))
            # The first column names the row, so it is always on the left.
            cells.append(padding + text if right and index > 0 else text + padding)
        line = Text("  " + _SPACE.join([*cells, ""]), style=style)
        if place == 0:
            line.append(reason, style=SOFT)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _wrapped(text: str, width: int) -> Sequence[str]:
    """Lines of a text that are at most so wide, if its words are."""
    lines = [""]
    for word in _words(text):
        space = " "
        for part in [word] if cell_len(word) <= width else _pieces(word):
            joined = f"{lines[-1]}{space}{part}" if lines[-1] else part
            if lines[-1] and cell_len(joined) > width:
                lines.append(part)
            else:
                lines[-1] = joined
            space = ""
    return lines


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def print_experiments(
    console: Console, results: Sequence[ExperimentResult], claims: Sequence[Answer] = ()
) -> None:
    """Answers of experiments one below the other, then the verdicts on claims of papers. What could
    not run at all is one line for each reason, with the command that installs what is missing."""
    missing: dict[str, list[ExperimentResult]] = {}
    answers = []
    for result in results:
        reason = _common_reason(result.records)
        if reason:
            missing.setdefault(reason, []).append(result)
        else:
            answers.append(result.answer)
    print_answers(console, [*answers, *claims])
    if missing and (answers or claims):
        console.print()
    for reason, left_out in missing.items():
        names = ", ".join(dict.fromkeys(r.experiment_run.experiment for r in left_out))
        _line(console, f"Not measured: {names}. {clean(reason)}", style=CAUTION)


def _common_reason(records: Sequence[RunRecord]) -> str:
    """Why none of the runs was measured, if that was known before they began; else empty."""
    statuses = {r.outcome.status for r in records}
    if statuses not in ({Status.NOT_INSTALLED}, {Status.UNSUPPORTED}):
        return ""
    first, *others = dict.fromkeys(r.outcome.message.rstrip(".") for r in records)
    if not others:
        return f"{first}."
    _, *names = dict.fromkeys(r.spec.program.framework for r in records)
    if statuses == {Status.UNSUPPORTED} or len(names) != len(others):
        return ""
    return f"{first}. Not installed either: {', '.join(names)}."


def print_answers(console: Console, answers: Sequence[Answer]) -> None:
    """Answers one below the other."""
    for index, answer in enumerate(answers):
        if index:
            console.print()
        print_answer(console, answer)
