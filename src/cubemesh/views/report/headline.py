"""Headline of a report: the most important finding of measured runs.

Findings are ranked by code: wrong results first, then a comparison that was asked for, the
performance of the machine, what it loses, and other figures; what is missing comes last. Within one
rank a finding with published results to compare comes first, then one about the main workload of
the page (the network of more than half of its runs), then one without caveats, then the run with
the highest rate of floating-point operations (of a loss: the largest), then the order of the
answers.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cubemesh.errors import CubemeshError
from cubemesh.forecast.fast_algorithms import operations
from cubemesh.networks import build_for
from cubemesh.schema import Answer, Finding, NetworkWork, RunRecord, Training
from cubemesh.schema.answer import INTERVAL_MEANING, is_interval_note
from cubemesh.untrusted import clean
from cubemesh.views import formatting

RANKS: tuple[tuple[str, ...], ...] = (
    ("wrong-results", "training-failed"),
    ("machine-ratio", "speed-ratio"),
    ("throughput", "scaling-efficiency", "fastest-settings", "highest-throughput"),
    (
        *("largest-loss", "largest-overhead", "input-bottleneck", "link-cost", "bus-bandwidth"),
        *("fastest-framework", "fastest-matrix-product", "largest-speed-up", "device-speed-up"),
        *("time-to-accuracy", "highest-accuracy", "constant-rate-loss", "device-bottleneck"),
    ),
)
"""Codes of findings, the most important rank first."""
_LOSSES = ("largest-loss", "largest-overhead")
"""Codes whose largest value matters most."""
_MISSING = (
    *("failed-run", "nothing-measured", "noisy-runs", "not-compared", "no-measurement"),
    *("input-not-compared", "untried-settings", "search-cut-short"),
)
_CONDITIONS = re.compile(r" \(([^()]*[a-z]{3}[^()]*)\)(?=: |\.?$)")
"""Words in brackets at the end of a sentence, or before its colon."""
_MOST_LETTERS = 90
"""A longer headline ends at its colon."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A finding, its answer, and its importance: the lowest `rank` matters most."""

    finding: Finding
    answer: Answer
    index: int
    """Of the answer, from 1."""
    rank: tuple[float, ...]


def ranked(answers: Sequence[Answer], records: Iterable[RunRecord]) -> list[Ranked]:
    """All findings, the most important first; those of simulated runs last."""
    by_id = {record.run_id: record for record in records}
    others = _minor_networks(by_id.values())
    found = [
        Ranked(finding=f, answer=answer, index=i, rank=_rank(f, answer, by_id, others))
        for i, answer in enumerate(answers, start=1)
        for f in answer.findings
    ]
    return sorted(found, key=lambda one: one.rank)


def headline(answers: Sequence[Answer], records: Iterable[RunRecord]) -> str:
    """The title of the page: the most important finding of measured runs, or the state of the
    runs."""
    records = tuple(records)
    top = top_finding(answers, records)
    if top is not None:
        return formatting.unbroken(split_text(top)[0])
    if any(answer.simulated for answer in answers):
        return "Simulated (null framework): nothing was measured."
    ended = [record.ok for record in records]
    if not ended:
        return "No runs on this machine yet."
    runs = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
    if not any(ended):
        return f"{runs}, none with a result."
    return f"{runs}, no finding yet."


def lead(answers: Sequence[Answer], records: Iterable[RunRecord] = ()) -> tuple[str, str]:
    """What the headline's figure is worth (the finding `verdict` of its answer) and the remedy;
    without it the rest of the headline's sentence and its remedy, where no card has them."""
    measured = [one for one in ranked(answers, records) if not one.answer.simulated]
    if not measured:
        return "", ""
    top = measured[0]
    verdict = next((f for f in top.answer.findings if f.code == "verdict"), None)
    if verdict is not None and top.finding.code == "throughput":
        network = f"{top.finding.text.partition(' ')[0]}: "  # the headline has it
        return clean(verdict.text).removeprefix(network), clean(verdict.remedy)
    if top.finding.question is not None:
        return "", ""
    return split_text(top.finding)[2], clean(top.finding.remedy)


def interval_note(answers: Sequence[Answer]) -> str:
    """What ± means: the note of the first answer that says it; empty where there is no ±."""
    if not any(finding.low is not None for answer in answers for finding in answer.findings):
        return ""
    own = (note for answer in answers for note in answer.notes if is_interval_note(note))
    return clean(next(own, INTERVAL_MEANING))


def top_finding(answers: Sequence[Answer], records: Iterable[RunRecord]) -> Finding | None:
    """The most important finding; None without one of measured runs."""
    found = (one.finding for one in ranked(answers, records) if not one.answer.simulated)
    return next(found, None)


def split_text(finding: Finding) -> tuple[str, str, str]:
    """The sentence of a finding as title, conditions and rest. Conditions are words in brackets at
    the end of a long sentence or before its colon, so that the others remain a sentence; the rest
    begins at its first colon, if its figure is before it."""
    text = clean(finding.text)
    if finding.value is None or len(text) <= _MOST_LETTERS:
        return text, "", ""
    figure = formatting.split_figure(finding.value, finding.unit, finding.low, finding.high)[0]
    title, colon, rest = text.partition(": ")
    if not colon or figure.rstrip("×") not in title:
        found = _CONDITIONS.search(text)
        if found is None:
            return text, "", ""
        return f"{text[: found.start()]}{text[found.end() :]}", found[1], ""
    found = _CONDITIONS.search(title)
    if found is not None and title.endswith(")"):
        return title.removesuffix(found[0]), found[1], rest[:1].upper() + rest[1:]
    return title, "", rest[:1].upper() + rest[1:]


def _minor_networks(records: Iterable[RunRecord]) -> frozenset[str]:
    """The networks other than that of more than half of the runs; none if there is no such one."""
    ran = Counter(
        r.spec.work.network for r in records if r.ok and isinstance(r.spec.work, NetworkWork)
    )
    main, most = max(ran.items(), key=lambda pair: pair[1], default=("", 0))
    return frozenset(ran) - {main} if 2 * most > ran.total() else frozenset()


def _rank(
    finding: Finding, answer: Answer, records: Mapping[str, RunRecord], others: frozenset[str]
) -> tuple[float, ...]:
    own = _records(finding, answer, records)
    rate = max(map(_flops_per_s, own), default=0.0)
    loss = finding.code in _LOSSES and finding.value is not None
    return (
        float(answer.simulated),
        float(_code_rank(finding)),
        float(not _is_compared(finding, answer)),
        float(bool(own) and all(_network(record) in others for record in own)),
        float(bool(finding.caveats)),
        -float(finding.value) if loss and finding.value is not None else -rate,
    )


def _network(record: RunRecord) -> str:
    work = record.spec.work
    return work.network if isinstance(work, NetworkWork) else ""


def _flops_per_s(record: RunRecord) -> float:
    """Matrix operations of a training per second; 0 for anything else."""
    known, rate = record.figure("model_flops_per_s"), record.figure("throughput_per_s")
    if known is not None:
        return known
    work = record.spec.work
    return rate * _sample_flops(work) if rate and isinstance(work, Training) else 0.0


@functools.lru_cache(maxsize=256)
def _sample_flops(work: Training) -> float:
    try:
        network = build_for(work)
    except (CubemeshError, ValueError):  # a network of another version
        return 0.0
    return operations(network, work.batch_per_device).both.counted / work.batch_per_device


def _code_rank(finding: Finding) -> int:
    for rank, codes in enumerate(RANKS):
        if finding.code in codes:
            return rank
    if finding.code in _MISSING or finding.code.startswith(("unknown-", "no-")):
        return len(RANKS) + 3
    if finding.value is None:
        return len(RANKS) + 2
    return len(RANKS) + (finding.question is None)


def _is_compared(finding: Finding, answer: Answer) -> bool:
    """Whether the answer compares the finding's network with published results."""
    if any(line.role == "published" for chart in answer.charts for line in chart.lines):
        return True
    first = finding.text.split(" ")[0]
    return finding.code == "throughput" and any(
        f.code.startswith("published-") and f.text.startswith(first) for f in answer.findings
    )


def _records(finding: Finding, answer: Answer, records: Mapping[str, RunRecord]) -> list[RunRecord]:
    """The runs of the networks that a finding names, or all of its answer."""
    all_ = [records[run_id] for run_id in answer.run_ids if run_id in records]
    named = [
        r
        for r in all_
        if isinstance(r.spec.work, NetworkWork) and r.spec.work.network in finding.text
    ]
    return named or all_
