"""Marking: an answer with its contradictions instead of its verdicts.

A finding that fails loses its value and its sentence, and states the contradiction; the title of a
table or chart that fails says *inconsistent*. The answer has the warning `inconsistent` for each,
so that the terminal, the page and JSON all show it. Marking an answer twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cubemesh.audit.audit import audit
from cubemesh.audit.evidence import Evidence
from cubemesh.audit.inconsistency import Inconsistency
from cubemesh.experiments.analysis.titles import distinct_titles
from cubemesh.schema import Answer, Finding, RunRecord, warn
from cubemesh.schema.warning import INCONSISTENT

LABEL = " · inconsistent"


def marked(answers: Sequence[tuple[Answer, Sequence[RunRecord]]]) -> list[Answer]:
    """The answers of one run or page after the audit, in their order, with distinct titles."""
    named = distinct_titles(answers)
    found = audit([Evidence(answer, tuple(records)) for answer, records in named])
    return [mark(answer, _of(answer, found)) for answer, _ in named]


def _of(answer: Answer, found: Iterable[Inconsistency]) -> list[Inconsistency]:
    place = (answer.experiment, answer.title)
    return [one for one in found if (one.where.answer, one.where.title) == place]


def mark(answer: Answer, found: Sequence[Inconsistency]) -> Answer:
    """`answer` with these contradictions shown, and without the verdicts that they concern."""
    if not found:
        return answer
    by_finding = {one.where.finding: one for one in reversed(found) if one.where.finding}
    titles = {one.where.table for one in found if one.where.table is not None}
    warnings = tuple(warn(INCONSISTENT, one.text, one.remedy) for one in found)
    return replace(
        answer,
        findings=tuple(
            _without_verdict(f, by_finding[f.text]) if f.text in by_finding else f
            for f in answer.findings
        ),
        tables=tuple(
            replace(t, title=_labelled(t.title)) if t.title in titles else t for t in answer.tables
        ),
        charts=tuple(
            replace(c, title=_labelled(c.title)) if c.title in titles else c for c in answer.charts
        ),
        warnings=tuple(dict.fromkeys((*warnings, *answer.warnings))),
    )


def _without_verdict(finding: Finding, why: Inconsistency) -> Finding:
    return replace(
        finding,
        text=f"Inconsistent, no verdict. {why.text}",
        value=None,
        unit="",
        low=None,
        high=None,
        sides=None,
        remedy=why.remedy,
        caveats=tuple(dict.fromkeys((INCONSISTENT, *finding.caveats))),
    )


def _labelled(title: str) -> str:
    return title if title.endswith(LABEL) else f"{title}{LABEL}".removeprefix(" · ")
