"""Audit of a store: contradictions between its figures, and between figures and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.audit.audit import audit
from cubemesh.audit.evidence import Evidence
from cubemesh.audit.inconsistency import Inconsistency
from cubemesh.experiments.analysis.titles import distinct_titles
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import stored_results

if TYPE_CHECKING:
    from cubemesh.store import Store


@dataclass(frozen=True, kw_only=True, repr=False)
class AuditResult:
    """What was audited, and what was found."""

    inconsistencies: tuple[Inconsistency, ...]
    records: int
    """Number of runs."""
    answers: int
    """Number of answers."""

    @property
    def ok(self) -> bool:
        """Whether nothing is inconsistent."""
        return not self.inconsistencies

    def __repr__(self) -> str:
        lines = [f"AuditResult({len(self.inconsistencies)} inconsistencies)"]
        return "\n  - ".join([*lines, *(f"{i.code}: {i.text}" for i in self.inconsistencies)])


def audit_store(*, store: AnyStore = None) -> AuditResult:
    """Check all answers and runs of a store; StoreError where there is no store."""
    with open_store(store, reading=True) as opened:
        evidence = stored_evidence(opened)
    return AuditResult(
        inconsistencies=audit(evidence),
        records=len({r.run_id for one in evidence for r in one.records}),
        answers=sum(one.answer is not None for one in evidence),
    )


def stored_evidence(store: Store) -> Sequence[Evidence]:
    """Every answer of a store with its records, then the runs that no answer uses."""
    known = [run for run in store.experiment_runs() if run.experiment in EXPERIMENTS]
    answered = stored_results(known, EXPERIMENTS, store)
    named = distinct_titles([(one.answer, one.records) for one in answered])
    found = [Evidence(answer, tuple(records)) for answer, records in named]
    used = {r.run_id for one in found for r in one.records}
    rest = tuple(r for r in store.records() if r.run_id not in used)
    return [*found, Evidence(None, rest)]
