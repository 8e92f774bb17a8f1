"""Audit of any set of answers and records: every check, in the order of `CHECKS`.

An answer is audited with its own records; throughputs of one workload are compared across all of
them. The result has each contradiction once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cubemesh.audit import (
    ceilings,
    comparability,
    latencies,
    names,
    parts,
    same_workload,
    shares,
    units,
    verdicts,
)
from cubemesh.audit.evidence import Evidence
from cubemesh.audit.inconsistency import Inconsistency

Check = Callable[[Evidence], Iterator[Inconsistency]]
CHECKS: tuple[Check, ...] = (
    same_workload.ratios,
    parts.parts_of_runs,
    parts.parts_in_tables,
    shares.shares,
    ceilings.above_limits,
    ceilings.sustained,
    ceilings.input_stages,
    comparability.published_rows,
    comparability.sides,
    comparability.projections,
    verdicts.of_parts,
    verdicts.of_runs,
    verdicts.of_repeated_ratios,
    verdicts.of_causes,
    verdicts.of_input,
    verdicts.of_ratios,
    verdicts.of_failed_runs,
    units.of_work,
    units.bytes_or_items,
    units.intervals,
    units.steps,
    units.energy,
    units.windows,
    latencies.in_order,
    names.columns,
)
"""Checks of one answer with its records."""


def audit(evidence: Iterable[Evidence]) -> tuple[Inconsistency, ...]:
    """All contradictions within and between the answers."""
    several = tuple(evidence)
    found = [*same_workload.different_figures(several), *names.answers(several)]
    found += [one for each in several for check in CHECKS for one in check(each)]
    return tuple(dict.fromkeys(found))
