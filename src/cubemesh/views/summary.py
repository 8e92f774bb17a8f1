"""Summary of a performance check: one screen, wrapped to the width of the terminal.

The order is that of the questions: the machine, how fast it trains, what others reach, the largest
loss with its measured remedy, what else was gained, the page and the next command. Tables, charts
and every warning are in the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cubemesh.experiments.performance_check.experiment import EXPERIMENT as PERFORMANCE_CHECK
from cubemesh.schema import Answer, Finding, Machine
from cubemesh.views import formatting
from cubemesh.views.terminal import ACCENT, CAUTION, SOFT, print_answer, print_experiments

if TYPE_CHECKING:
    from cubemesh.api.run import RunResult

HEADINGS = {
    "How fast": ("throughput", "failed-run"),
    "What others reach": ("published-ratio",),
    "Largest loss": ("largest-loss", "no-loss"),
    "More speed": ("further-gain",),
    "Training time": ("training-time",),
}
"""Heading → codes of its findings."""
MAX_WARNINGS = 2


def print_run(console: Console, found: RunResult, page: Path | None = None) -> None:
    """The result of `cubemesh run`: the summary of a performance check, else every answer."""
    answers = found.answers
    if found.machine is not None and [a.experiment for a in answers] == [PERFORMANCE_CHECK.name]:
        print_summary(console, found.machine, answers[0], page)
        return
    print_experiments(console, found.experiments, found.claims)
    if found.compared is not None:
        console.print()
        print_answer(console, found.compared)
    if page is not None:
        console.print(f"report  {page.resolve()}", soft_wrap=True, markup=False)


def print_summary(
    console: Console, machine: Machine, answer: Answer, page: Path | None = None
) -> None:
    """One screen of an answer."""
    console.print(Text(formatting.machine_line(machine), style="bold"))
    for heading, codes in HEADINGS.items():
        own = [f for f in answer.findings if f.code in codes]
        if own:
            _section(console, heading, [_text(f) for f in own])
    warnings = list(_warnings(answer))
    if warnings:
        _section(console, "Caveats", warnings, style=CAUTION)
    if page is not None:
        _commands(console, "Report", [str(page.resolve())])
    _commands(console, "Next", _next(answer))


def _section(
    console: Console, heading: str, paragraphs: Sequence[Text], style: str = ACCENT
) -> None:
    console.print()
    console.print(Text(heading, style=style))
    for paragraph in paragraphs:
        console.print(Padding(paragraph, (0, 0, 0, 2), expand=False))


def _commands(console: Console, heading: str, lines: Iterable[str]) -> None:
    """Lines to copy, which are not wrapped."""
    console.print()
    console.print(Text(heading, style=ACCENT))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _text(finding: Finding) -> Text:
    text = Text(formatting.clean(finding.text))
    if finding.caveats:
        text.append(f" (! {', '.join(finding.caveats)})", style=CAUTION)
    return text


def _warnings(answer: Answer) -> Iterator[Text]:
    """The cause of the most frequent warnings that forbid a close comparison."""
    caveats = {code for finding in answer.findings for code in finding.caveats}
    causes: dict[str, list[str]] = {}
    for warning in answer.warnings:
        if warning.code in caveats:
            causes.setdefault(warning.code, []).append(warning.cause)
    ranked = sorted(causes.items(), key=lambda one: -len(one[1]))
    for code, own in ranked[:MAX_WARNINGS]:
        yield Text(f"{code}, {len(own)} of the runs: {formatting.clean(own[0])}", style=SOFT)


def _next(answer: Answer) -> Iterator[str]:
    """The next commands."""
    if any(finding.caveats for finding in answer.findings):
        yield "cubemesh run quick --no-cache --wait-quiet 10m"
    networks = [row[0].text for table in answer.tables[:1] for row in table.rows]
    if networks:
        yield f"cubemesh tune {networks[-1]}"
    yield "cubemesh experiments"
