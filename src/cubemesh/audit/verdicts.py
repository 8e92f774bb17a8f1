"""Verdicts: a verdict needs its evidence in the figures of the same answer.

- An overhead of a step needs parts that do not exceed the step (parts.py).
- "Not input-bound" needs training on real input as fast as without; where it is slower, a finding
  says why.
- "Fastest" and "slower" need a ratio whose interval does not contain 1.
- A figure needs a run that succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator

from cubemesh.audit.evidence import Evidence, interval, name_of
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.measure.attribution.bottlenecks import excess_of
from cubemesh.schema import Finding, NetworkWork, RunRecord

OF_PARTS = ("largest-overhead", "scaling-overhead")
"""Findings from the parts of a step."""
NOT_INPUT_BOUND = ("device-bottleneck", "no-input-cost")
INPUT_EXPLAINED = ("input-bottleneck", "input-bound", "host-contention", "copy-cost")
"""Findings that say why input costs time."""
OF_RATIOS = (
    "fastest-framework",
    "fastest-frameworks",
    "fastest-settings",
    "fastest-setting",
    "input-bottleneck",
    "largest-loss",
    "further-gain",
)
"""Findings that claim a difference by their value, a ratio."""
LEAST_SPEED = 0.9
"""Speed with input over speed without, below which the input has a cost."""


def of_parts(evidence: Evidence) -> Iterator[Inconsistency]:
    """Verdicts about a step whose parts exceed it."""
    bad = [(r, share) for r in evidence.records if (share := excess_of(r)) is not None]
    for finding in evidence.findings:
        for record, share in bad:
            if finding.code in OF_PARTS and _is_about(finding, record, len(evidence.records)):
                yield inconsistency(
                    "verdict-without-evidence",
                    f"“{finding.text}”, and the measured parts of {name_of(record)} exceed the "
                    f"step by {100 * share:.0f} %.",
                    evidence.place(record.run_id, finding=finding),
                    "Stop other programs and measure again with --no-cache.",
                )
                break


def _is_about(finding: Finding, record: RunRecord, records: int) -> bool:
    """Whether a finding names the network of a record, and its batch size where it names one."""
    work = record.spec.work
    if records == 1 or not isinstance(work, NetworkWork):
        return True
    if "batch size" in finding.text and f"batch size {work.batch_per_device}" not in finding.text:
        return False
    return work.network in finding.text or finding.code != "largest-overhead"


def of_input(evidence: Evidence) -> Iterator[Inconsistency]:
    """Verdicts that no input is waited for, next to training that is slower with it."""
    codes = {finding.code for finding in evidence.findings}
    slow = [
        f
        for f in evidence.findings
        if f.code == "input-cost"
        and f.value is not None
        and f.value < LEAST_SPEED
        and interval(f)[1] < 1
    ]
    if not slow:
        return
    worst = min(slow, key=lambda f: f.value or 0.0)
    for finding in evidence.findings:
        if finding.code in NOT_INPUT_BOUND:
            yield inconsistency(
                "verdict-without-evidence",
                f"“{finding.text}”, and “{worst.text}”",
                evidence.place(finding=finding),
                "Report what slows training with input: a stage, or contention for the cores.",
            )
    if not codes & {*INPUT_EXPLAINED, *NOT_INPUT_BOUND}:
        yield inconsistency(
            "unexplained-input-cost",
            f"“{worst.text}”: no finding says why.",
            evidence.place(finding=worst),
            "Measure the stages too: --set parts=read,decode,copy,disk,device.",
        )


def of_ratios(evidence: Evidence) -> Iterator[Inconsistency]:
    """Differences claimed from a ratio whose interval contains 1."""
    for finding in evidence.findings:
        low, high = interval(finding)
        if finding.code not in OF_RATIOS or finding.unit[:1] != "×" or low == high:
            continue
        if low <= 1 <= high:
            yield inconsistency(
                "insignificant-verdict",
                f"“{finding.text}” rests on a ratio of {finding.value:.2f} "
                f"({low:.2f} to {high:.2f}), which may be 1.",
                evidence.place(finding=finding),
                "Measure with --set repeats=3 or more, or report no significant difference.",
            )


def of_failed_runs(evidence: Evidence) -> Iterator[Inconsistency]:
    """Cells with a value of a run that failed."""
    for row in evidence.rows:
        for column, cell in zip(row.table.columns, row.cells, strict=False):
            record = evidence.by_id.get(cell.run_id)
            if (
                cell.value is not None
                and record is not None
                and not record.ok
                and not record.figures
            ):
                yield inconsistency(
                    "figure-of-failed-run",
                    f"{column.name} {cell.value:.4g} {column.unit} refers to run {cell.run_id}: "
                    f"{record.outcome.status.value}.",
                    evidence.place(cell.run_id, table=row.table.title),
                    "Measure it again: cubemesh run … --no-cache.",
                )
