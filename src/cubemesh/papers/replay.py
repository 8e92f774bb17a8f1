"""What of a document holds on this machine? The answer of a suite that replays a document.

Computed from the records of the suite's questions alone, so that a report can make it again.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from cubemesh.experiments.analysis.caveats import mark_simulated
from cubemesh.experiments.registry import EXPERIMENTS, SUITES
from cubemesh.papers.claims import CHECKS, judge
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import (
    Answer,
    Cell,
    Claim,
    ClaimState,
    Column,
    ExperimentRun,
    Finding,
    Machine,
    RunRecord,
    Table,
    Verdict,
)
from cubemesh.units import format_interval, format_list

SHOWN = 72
"""Characters of a claim's conditions in the table; the data have all of them."""


def replay(
    suite: str, asked: Iterable[tuple[str, Sequence[RunRecord]]], machine: Machine | None
) -> Answer:
    """Every claim of the document that `suite` replays, with its verdict: a claim is held against
    the records of its own experiment alone. `asked` are experiments with their records."""
    document = SUITES[suite].document
    kept: dict[str, dict[str, RunRecord]] = {}
    for experiment, records in asked:
        kept.setdefault(experiment, {}).update({r.run_id: r for r in records})
    verdicts = [
        judge(
            claim,
            Evidence(records=tuple(kept.get(claim.experiment, {}).values()), machine=machine),
            EXPERIMENTS,
        )
        for claim in claims()
        if claim.document == document
    ]
    answer = Answer(
        experiment=suite,
        question=f"What that document {document} claims holds on this machine?",
        title=f"Document {document}: its claims",
        findings=tuple(_findings(document, verdicts)),
        tables=(_table(verdicts),),
        run_ids=tuple(dict.fromkeys(run_id for own in kept.values() for run_id in own)),
        notes=(
            "Ratios, directions and bends are tested on any machine, absolute figures on the "
            "document's device only. A value holds when its 95 % interval comes within 10 % of "
            "the document's.",
        ),
    )
    return mark_simulated(answer, [record for own in kept.values() for record in own.values()])


def replayed(suite: str, stored: Sequence[ExperimentRun], machine_id: str) -> list[ExperimentRun]:
    """The stored experiment runs that a replay of `suite` on this machine uses: the latest of each
    experiment and network."""
    newest: dict[tuple[str, str], ExperimentRun] = {}
    for run in sorted(stored, key=lambda q: q.started_utc):
        known = run.experiment in EXPERIMENTS and run.run_ids
        if known and (run.suite, run.machine_id) == (suite, machine_id):
            networks = run.settings.get("networks", run.settings.get("network"))
            newest[run.experiment, str(networks)] = run
    return list(newest.values())


def documents() -> list[str]:
    """The suites that replay a document."""
    return [name for name, suite in SUITES.items() if suite.document]


def _findings(document: str, verdicts: list[Verdict]) -> Iterable[Finding]:
    states = Counter(v.state for v in verdicts)
    holds, fails = states[ClaimState.HOLDS], states[ClaimState.DOES_NOT_HOLD]
    untestable = states[ClaimState.CANNOT_BE_TESTED_HERE]
    yield Finding(
        text=f"Of the {len(verdicts)} claims of document {document}, {holds} "
        f"{'holds' if holds == 1 else 'hold'} here, {fails} "
        f"{'does' if fails == 1 else 'do'} not, and {untestable} cannot be "
        "tested here."
    )
    if disturbed := [v for v in verdicts if _in_doubt(v)]:
        yield Finding(
            text=f"{format_list(v.claim.id for v in disturbed)} "
            f"{'rests' if len(disturbed) == 1 else 'rest'} on runs that were disturbed, so "
            "other programs may have made the verdict.",
            remedy="Measure again on a quiet machine, with --no-cache.",
            caveats=tuple(dict.fromkeys(code for v in disturbed for code in v.caveats)),
        )
    for verdict in verdicts:
        if verdict.state is ClaimState.DOES_NOT_HOLD and verdict.measured is not None:
            m = verdict.measured
            yield Finding(
                text=f"{verdict.claim.id} does not hold: the document has "
                f"{_values(verdict.claim)}; here it is {format_interval(m.value, m.low, m.high)} "
                f"({verdict.reason}).",
                caveats=verdict.caveats,
            )


def _in_doubt(verdict: Verdict) -> bool:
    """Whether a claim was settled by runs that another program may have slowed."""
    return bool(verdict.caveats) and verdict.state is not ClaimState.CANNOT_BE_TESTED_HERE


def _table(verdicts: list[Verdict]) -> Table:
    columns = (
        Column(name="claim"),
        Column(name="verdict"),
        Column(name="document"),
        Column(name="measured"),
        Column(name="what"),
        Column(name="because"),
    )
    # What was settled or could be comes first: the rest needs experiments yet to come.
    ordered = sorted(verdicts, key=lambda v: v.claim.id not in CHECKS)
    return Table(title="", columns=columns, rows=tuple(map(_row, ordered)))


def _row(verdict: Verdict) -> tuple[Cell, ...]:
    claim, measured = verdict.claim, verdict.measured
    figure = Cell(text="–")
    if measured is not None:
        figure = Cell(
            value=measured.value, low=measured.low, high=measured.high, run_id=verdict.run_id
        )
    what = ": ".join(t for t in (claim.network, claim.quantity) if t)
    words = "; ".join(t for t in (what, claim.system, claim.conditions) if t)
    return (
        Cell(text=claim.id),
        Cell(text=f"{verdict.state}, disturbed" if _in_doubt(verdict) else str(verdict.state)),
        Cell(text=_values(claim)),
        figure,
        Cell(text=textwrap.shorten(words, SHOWN, placeholder=" …")),
        Cell(text=verdict.reason),
    )


def _values(claim: Claim) -> str:
    return f"{'; '.join(f'{v:g}' for v in claim.values)} {claim.unit}".strip() or "in words"
