"""Replay of a paper: the verdicts of its claims on this machine.

Computed from the stored records of the suite's experiment runs alone.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from cubemesh.experiments.analysis.caveats import mark_simulated
from cubemesh.experiments.registry import EXPERIMENTS, SUITES, Scale
from cubemesh.papers.claims import check_claim
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import (
    Answer,
    Basis,
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
from cubemesh.schema.published import PAPERS, cite
from cubemesh.units import format_interval, format_list

MAX_CONDITIONS = 72
"""Characters of a claim's conditions in the table."""


def replay(
    suite: str,
    experiments: Iterable[tuple[str, Sequence[RunRecord]]],
    machine: Machine | None,
    *,
    reduced: Collection[str] = (),
) -> Answer:
    """Verdicts of all claims of the paper that `suite` replays, each from the records of its own
    experiment. `experiments` are pairs of an experiment and its records; those of `reduced` ran
    with --quick."""
    paper = SUITES[suite].paper
    stored: dict[str, dict[str, RunRecord]] = {}
    for experiment, records in experiments:
        stored.setdefault(experiment, {}).update({r.run_id: r for r in records})
    verdicts = [
        check_claim(
            claim,
            Evidence(
                records=tuple(stored.get(claim.experiment, {}).values()),
                machine=machine,
                reduced=claim.experiment in reduced,
            ),
        )
        for claim in claims()
        if claim.document == paper
    ]
    answer = Answer(
        experiment=suite,
        question=f"Which claims of {cite(paper)} hold on this machine?",
        title=f"Claims of {PAPERS[paper]} [{paper}]",
        findings=tuple(_findings(paper, verdicts)),
        tables=(_table(verdicts),),
        run_ids=tuple(dict.fromkeys(run_id for own in stored.values() for run_id in own)),
        notes=(
            "Ratios and directions are tested on any machine, absolute figures on the paper's "
            "device only. A value holds if its 95 % interval, or the nine-in-ten band of its "
            "forecast, comes within 10 % of the paper's. A run with --quick settles no claim.",
            "Basis of a verdict: measured here; a forecast for the paper's machine, from "
            "datasheets and links; a specification of the catalogue from another source; or "
            "published by the source that the paper quotes.",
        ),
    )
    return mark_simulated(answer, [record for own in stored.values() for record in own.values()])


def replayed(suite: str, stored: Sequence[ExperimentRun], machine_id: str) -> list[ExperimentRun]:
    """The stored experiment runs that a replay of `suite` on this machine uses: the latest of each
    experiment and network."""
    newest: dict[tuple[str, str], ExperimentRun] = {}
    for run in sorted(stored, key=lambda q: q.started_utc):
        known = run.experiment in EXPERIMENTS and run.run_ids
        if known and (run.suite, run.machine_id) == (suite, machine_id):
            newest[run.experiment, str(run.settings.get("networks"))] = run
    return list(newest.values())


def reduced_experiments(runs: Iterable[ExperimentRun]) -> set[str]:
    """The experiments that ran with --quick."""
    return {run.experiment for run in runs if run.scale == Scale.QUICK}


def documents() -> list[str]:
    """Suites that replay a paper."""
    return [name for name, suite in SUITES.items() if suite.paper]


def _findings(paper: str, verdicts: list[Verdict]) -> Iterable[Finding]:
    states = Counter((v.state, v.basis is Basis.MEASURED) for v in verdicts)
    holds, fails = states[ClaimState.HOLDS, True], states[ClaimState.DOES_NOT_HOLD, True]
    also, neither = states[ClaimState.HOLDS, False], states[ClaimState.DOES_NOT_HOLD, False]
    untestable = len(verdicts) - holds - fails - also - neither
    yield Finding(
        code="claims",
        text=f"Of the {len(verdicts)} claims of {cite(paper)}, {holds} "
        f"{'holds' if holds == 1 else 'hold'} here, {fails} "
        f"{'does' if fails == 1 else 'do'} not, and {untestable} cannot be tested here. By "
        f"forecast or specification of the paper's machines, {also} "
        f"{'holds' if also == 1 else 'hold'} and {neither} "
        f"{'does' if neither == 1 else 'do'} not.",
        value=holds,
        unit=f"of {len(verdicts)} claims",
    )
    if noisy := [v for v in verdicts if _unreliable(v)]:
        verb = "is" if len(noisy) == 1 else "are"
        yield Finding(
            code="noisy-claims",
            text=f"{format_list(v.claim.id for v in noisy)} {verb} based on noisy runs; the "
            "verdict may be due to other load.",
            remedy="Measure again on a quiet machine, with --no-cache.",
            caveats=tuple(dict.fromkeys(code for v in noisy for code in v.caveats)),
        )
    for verdict in verdicts:
        fails = verdict.state is ClaimState.DOES_NOT_HOLD
        if fails and verdict.basis is Basis.MEASURED and verdict.measured is not None:
            m = verdict.measured
            yield Finding.of(
                code="failed-claim",
                text=f"{verdict.claim.id} does not hold: {_values(verdict.claim)} in the paper, "
                f"{format_interval(m.value, m.low, m.high)} here ({verdict.reason}).",
                figure=m,
                unit=verdict.claim.unit,
                caveats=verdict.caveats,
            )


def _unreliable(verdict: Verdict) -> bool:
    """Whether a claim was settled by noisy runs."""
    settled = verdict.state is not ClaimState.CANNOT_BE_TESTED_HERE
    return bool(verdict.caveats) and settled and verdict.basis is Basis.MEASURED


def _table(verdicts: list[Verdict]) -> Table:
    names = ("claim", "verdict", "basis", "paper", "measured", "forecast", "claim text", "reason")
    return Table(
        title="", columns=tuple(Column(name=n) for n in names), rows=tuple(map(_row, verdicts))
    )


def _row(verdict: Verdict) -> tuple[Cell, ...]:
    claim, untested = verdict.claim, verdict.state is ClaimState.CANNOT_BE_TESTED_HERE
    measured, forecast = (
        Cell(text="–") if figure is None else Cell.of(figure, run_id=run_id)
        for figure, run_id in ((verdict.measured, verdict.run_id), (verdict.forecast, ""))
    )
    what = ": ".join(t for t in (claim.network, claim.quantity) if t)
    words = "; ".join(t for t in (what, claim.system, claim.conditions) if t)
    return (
        Cell(text=claim.id),
        Cell(text=f"{verdict.state}, noisy" if _unreliable(verdict) else str(verdict.state)),
        Cell(text="–" if untested else str(verdict.basis)),
        Cell(text=_values(claim)),
        measured,
        forecast,
        Cell(text=textwrap.shorten(words, MAX_CONDITIONS, placeholder=" …")),
        Cell(text=verdict.reason),
    )


def _values(claim: Claim) -> str:
    return f"{'; '.join(f'{v:g}' for v in claim.values)} {claim.unit}".strip() or "in words"
