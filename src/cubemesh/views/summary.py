"""Summary of a performance check: one screen, wrapped to the width of the terminal.

The order is that of the questions: the machine, the verdict, how fast it trains, what others reach,
the largest loss and other gains with their measured remedies, and the next commands, which apply
the remedies. Tables, charts and every warning are in the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cubemesh.experiments.performance_check.experiment import EXPERIMENT as PERFORMANCE_CHECK
from cubemesh.schema import Answer, Finding, Machine, Warning
from cubemesh.schema.answer import INTERVAL_MEANING, is_interval_note
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.terminal import ACCENT, CAUTION, SOFT, print_answer, print_experiments

if TYPE_CHECKING:
    from cubemesh.api.run import RunResult

HEADINGS = {
    "How fast": ("throughput", "training-time", "failed-run"),
    "What others reach": ("published-ratio", "published-other-device"),
    "Throughput loss": ("largest-loss", "no-loss", "throughput-loss", "further-gain"),
}
"""Heading → codes of its findings. The verdict is above them, and says what was not tried."""
DERIVED = ("verdict", "training-time", "published-ratio", "published-other-device")
"""Codes of findings that follow from a throughput, which has their caveats."""
MAX_WARNINGS = 2
MAX_REMEDIES = 2


def print_run(console: Console, found: RunResult) -> None:
    """The result of `cubemesh run`: the summary of a performance check, else every answer."""
    answers = found.answers
    if found.machine is not None and [a.experiment for a in answers] == [PERFORMANCE_CHECK.name]:
        print_summary(console, found.machine, answers[0])
        return
    print_experiments(console, found.experiments, found.claims)
    if found.compared is not None:
        console.print()
        print_answer(console, found.compared)


def print_page(console: Console, page: Path) -> None:
    """Where the page of a run is."""
    _commands(console, "Report", [str(page.resolve())])


def print_summary(console: Console, machine: Machine, answer: Answer) -> None:
    """One screen of an answer."""
    console.print(Text(formatting.machine_line(machine, console.width), style="bold"))
    for finding in answer.findings:
        if finding.code == "verdict":
            _paragraph(console, _text(finding))
    for heading, codes in HEADINGS.items():
        own = [_text(f) for f in answer.findings if f.code in codes]
        if own and "throughput" in codes:
            own += [Text(INTERVAL_MEANING, style=SOFT)] * any(map(is_interval_note, answer.notes))
        if own:
            _section(console, heading, own)
    warnings = list(_warnings(answer))
    if warnings:
        _section(console, "Caveats", warnings, style=CAUTION)
    _commands(console, "Next", _next(answer))


def _section(
    console: Console, heading: str, paragraphs: Sequence[Text], style: str = ACCENT
) -> None:
    console.print()
    console.print(Text(heading, style=style))
    for paragraph in paragraphs:
        _paragraph(console, paragraph)


def _paragraph(console: Console, text: Text) -> None:
    console.print(Padding(text, (0, 0, 0, 2), expand=False))


def _commands(console: Console, heading: str, lines: Iterable[str]) -> None:
    """Lines to copy, which are not wrapped; a shell ignores what is after `#`."""
    console.print()
    console.print(Text(heading, style=ACCENT))
    for line in lines:
        command, comment, words = line.partition("  # ")
        text = Text(f"  {command}")
        console.print(text.append(f"{comment}{words}", style=SOFT), soft_wrap=True)


def _text(finding: Finding) -> Text:
    text = Text(clean(finding.text))
    if finding.caveats and finding.code not in DERIVED:
        text.append(f" (! {', '.join(finding.caveats)})", style=CAUTION)
    return text


def _warnings(answer: Answer) -> Iterator[Text]:
    """Cause and remedy of the most frequent warnings that forbid a close comparison."""
    caveats = {code for finding in answer.findings for code in finding.caveats}
    causes: dict[str, list[Warning]] = {}
    for warning in answer.warnings:
        if warning.code in caveats:
            causes.setdefault(warning.code, []).append(warning)
    ranked = sorted(causes.items(), key=lambda one: -len(one[1]))
    for code, own in ranked[:MAX_WARNINGS]:
        remedy = clean(own[0].remedy).partition(". ")[0].removesuffix(".")
        yield Text(f"{code}: {clean(own[0].cause)} {remedy}.", style=SOFT)


def _next(answer: Answer) -> Iterator[str]:
    """The commands that apply the remedies, the headline's first, and what to run next; each with
    what it is for."""
    remedies: dict[str, str] = {}
    for finding in answer.findings:
        words, colon, arguments = finding.remedy.partition(": cubemesh ")
        if colon:
            remedies.setdefault(f"cubemesh {arguments}", words)
    for command, words in list(remedies.items())[:MAX_REMEDIES]:
        yield f"{command}  # {words}"
    if any(finding.caveats for finding in answer.findings):
        yield "cubemesh run quick --no-cache --wait-quiet 10m  # To measure again when it is quiet"
        return  # a search or another experiment would be as noisy
    first = next((f for f in answer.findings if f.code == "throughput"), None)
    if first is not None:
        yield f"cubemesh tune {first.text.partition(' ')[0]}  # To search for faster settings"
    yield "cubemesh experiments  # To list what else can be measured"
