"""Summary of a performance check: one screen, wrapped to the width of the terminal.

The order is that of the questions: the machine, the verdict, how fast it trains, what others reach,
the largest loss with its measured remedy, what is left to gain, and the next commands, which apply
the remedies. Where that is more than a screen, what matters least is left out. Tables, charts and
every warning are in the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cubemesh.experiments.performance_check.experiment import EXPERIMENT as PERFORMANCE_CHECK
from cubemesh.experiments.performance_check.report import quick_command
from cubemesh.schema import Answer, Machine, Warning
from cubemesh.schema.answer import INTERVAL_MEANING, is_interval_note
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.terminal import ACCENT, CAUTION, SOFT, print_answer, print_experiments

if TYPE_CHECKING:
    from cubemesh.api.run import RunResult

HEADINGS = {
    "How fast": ("throughput", "training-time", "failed-run"),
    "What others reach": ("published-ratio", "published-other-device"),
    "Throughput loss": ("largest-loss", "no-loss", "throughput-loss"),
    "Further": ("further-gain", "no-further-gain"),
}
"""Heading → codes of its findings. The verdict is above them."""
CAVEATS = "Caveats"
MOST_LINES = 45
"""Lines of a summary, with the path of its page."""
EXPENDABLE = (
    *(CAVEATS, "training-time", "published-other-device", "throughput-loss", "no-further-gain"),
    *("interval", "published-ratio"),
)
"""What is left out, in this order, where a terminal is too narrow: caveats but the first, and
findings of these codes."""
DERIVED = ("verdict", "training-time", "published-ratio", "published-other-device")
"""Codes of findings that follow from a throughput, which has their caveats."""
MAX_WARNINGS = 2
MAX_REMEDIES = 3
INDENT = "  "


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


@dataclass(frozen=True)
class _Paragraph:
    """A paragraph of a summary: its section, empty for the first one, and the code and the caveats
    of its finding."""

    heading: str
    code: str
    text: Text
    caveats: tuple[str, ...] = ()


def print_summary(console: Console, machine: Machine, answer: Answer) -> None:
    """One screen of an answer."""
    commands = list(_next(answer, gpu=bool(machine.gpus)))
    paragraphs = _fitting(console, list(_paragraphs(answer)), len(commands))
    for line in _wrapped(console, Text(formatting.machine_line(machine, console.width)), ""):
        console.print(line, style="bold")
    heading = ""
    for paragraph, text in zip(paragraphs, _texts(paragraphs), strict=True):
        if paragraph.heading != heading:
            heading = paragraph.heading
            console.print()
            console.print(Text(heading, style=CAUTION if heading == CAVEATS else ACCENT))
        for line in _wrapped(console, text):
            console.print(line)
    _commands(console, "Next", commands)


def _paragraphs(answer: Answer) -> Iterator[_Paragraph]:
    """In the order of the summary."""
    for heading, codes in (("", ("verdict",)), *HEADINGS.items()):
        own = [f for f in answer.findings if f.code in codes]
        for finding in own:
            caveats = () if finding.code in DERIVED else finding.caveats
            yield _Paragraph(heading, finding.code, Text(clean(finding.text)), caveats)
        if own and "throughput" in codes and any(map(is_interval_note, answer.notes)):
            yield _Paragraph(heading, "interval", Text(INTERVAL_MEANING, style=SOFT))
    for place, text in enumerate(_warnings(answer)):
        yield _Paragraph(CAVEATS, CAVEATS if place else "", text)


def _fitting(console: Console, paragraphs: list[_Paragraph], commands: int) -> list[_Paragraph]:
    """The paragraphs that fit into one screen next to so many commands."""
    fixed = 1 + (2 + commands) + 3  # machine; next; report
    for code in EXPENDABLE:
        lines = sum(len(_wrapped(console, text)) for text in _texts(paragraphs))
        headings = {one.heading for one in paragraphs} - {""}
        if fixed + lines + 2 * len(headings) <= MOST_LINES:
            break
        paragraphs = [one for one in paragraphs if one.code != code]
    return paragraphs


def _wrapped(console: Console, text: Text, indent: str = INDENT) -> list[Text]:
    """Its lines, indented, without spaces at their ends."""
    lines = text.wrap(console, console.width - len(indent))
    for line in lines:
        line.rstrip()
    return [Text(indent).append_text(line) for line in lines]


def _commands(console: Console, heading: str, lines: Iterable[str]) -> None:
    """Lines to copy, which are not wrapped; a shell ignores what is after `#`."""
    console.print()
    console.print(Text(heading, style=ACCENT))
    for line in lines:
        command, comment, words = line.partition("  # ")
        text = Text(f"  {command}")
        console.print(text.append(f"{comment}{words}", style=SOFT), soft_wrap=True)


def _texts(paragraphs: Iterable[_Paragraph]) -> Iterator[Text]:
    """Their texts with their caveats, which are spelled out where they differ from those above."""
    above: tuple[str, ...] = ()
    for one in paragraphs:
        text = one.text.copy()
        if one.caveats:
            codes = "the same" if one.caveats == above else ", ".join(one.caveats)
            text.append(f" (! {codes})", style=CAUTION)
            above = one.caveats
        yield text


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


def _next(answer: Answer, *, gpu: bool) -> Iterator[str]:
    """The commands that apply the remedies, the headline's first, and what to run next; each with
    what it is for."""
    remedies: dict[str, str] = {}
    for finding in answer.findings:
        words, colon, arguments = finding.remedy.partition(": cubemesh ")
        if colon:
            remedies.setdefault(f"cubemesh {arguments}", words)
    for command, words in list(remedies.items())[:MAX_REMEDIES]:
        yield f"{command}  # {words}"
    networks = [f.text.partition(" ")[0] for f in answer.findings if f.code == "throughput"]
    if any(finding.caveats for finding in answer.findings):
        again = f"{quick_command(networks, gpu=gpu)} --no-cache --wait-quiet 10m"
        yield f"{again}  # To measure again when it is quiet"
        return  # a search or another experiment would be as noisy
    if networks:
        yield f"cubemesh tune {networks[0]}  # To search for faster settings"
    yield "cubemesh run quick --set networks=model.py:Net  # To measure your own network"
