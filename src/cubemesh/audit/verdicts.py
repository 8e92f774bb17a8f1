"""Verdicts: a verdict needs its evidence in the figures of the same answer.

- An overhead of a step needs parts that do not exceed the step (parts.py).
- "Not input-bound" needs training on real input as fast as without; where it is slower, a finding
  says why.
- What a step loses most to is what the attribution of its run says, the mean over its ranks, and a
  ratio has the same verdict wherever it is shown.
- A cause of lost throughput needs an attribution or a tried remedy that shows it.
- "Fastest" and "slower" need a ratio whose interval does not contain 1.
- A figure needs a run that succeeded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from cubemesh.audit.evidence import Evidence, interval, name_of
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.attribution.attribution import GAPS
from cubemesh.measure.attribution.bottlenecks import excess_of, largest_bottleneck, losses
from cubemesh.schema import Finding, NetworkWork, RunRecord
from cubemesh.schema.comparison import Difference

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
OF_LOSSES = ("largest-loss", "throughput-loss")
"""Findings that may name the cause of lost throughput."""
EAGER = "pytorch"
LEAST_GAPS = 0.02
"""Fraction of a step from which launch gaps are a cause."""
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


def of_runs(evidence: Evidence) -> Iterator[Inconsistency]:
    """Findings about the step of a run that do not have what the run itself loses most to."""
    for finding in evidence.findings:
        record = evidence.by_id.get(finding.run_id)
        if finding.code not in OF_PARTS or record is None or excess_of(record) is not None:
            continue
        loss = largest_bottleneck(record)
        if loss is None or not loss.name:
            continue
        name, percent = loss.name.replace("_", " "), 100 * loss.share
        stated = (f"{percent:.0f} %", f"{percent:.1f} %")
        if name not in finding.text or not any(text in finding.text for text in stated):
            yield inconsistency(
                "verdicts-differ",
                f"“{finding.text}”, and by its attribution {name_of(record)} loses most to {name}: "
                f"{percent:.1f} % of the step.",
                evidence.place(record.run_id, finding=finding),
                "Name both, and compute both as the mean over the ranks.",
            )


def of_repeated_ratios(evidence: Evidence) -> Iterator[Inconsistency]:
    """Ratios whose finding has another verdict than their row."""
    words = tuple(difference.value for difference in Difference)
    for finding in evidence.findings:
        if not finding.verdict or finding.value is None:
            continue
        for row in evidence.rows:
            ratios = [c for c in row.cells if c.value is not None and c.value == finding.value]
            texts = [cell.text for cell in row.cells if cell.text.startswith(words)]
            if ratios and texts and finding.verdict not in texts:
                yield inconsistency(
                    "verdicts-differ",
                    f"A ratio of {finding.value:.3g}: “{finding.verdict}” in a finding, and "
                    f"“{texts[0]}” in a table.",
                    evidence.place(row.run_id, table=row.table.title, finding=finding),
                    "Judge all ratios of an answer together, once.",
                )


def of_causes(evidence: Evidence) -> Iterator[Inconsistency]:
    """Causes of lost throughput that no run shows for the networks of the finding."""
    rates = _rates(evidence.records)
    for finding in evidence.findings:
        if finding.code not in OF_LOSSES:
            continue
        networks = [name for name, _ in rates if name in finding.text]
        fused = any(
            max(_mean(own.get(name, ())) for name in _FUSING) > _mean(own[EAGER])
            for (network, _), own in rates.items()
            if network in networks and EAGER in own
        )
        gaps = any(
            losses(record).get(GAPS, 0.0) >= LEAST_GAPS
            for record in evidence.records
            if isinstance(record.spec.work, NetworkWork) and record.spec.work.network in networks
        )
        for cause, shown, why in (
            ("unfused kernels", fused, "no program that only fuses them is faster than eager"),
            ("launch", fused or gaps, "no attribution or compiler shows launch gaps"),
        ):
            if cause in finding.text.partition(". ")[0] and not shown:
                yield inconsistency(
                    "cause-without-evidence",
                    f"“{finding.text}”: {why}.",
                    evidence.place(finding=finding),
                    "Attribute a step (cubemesh run time-breakdown), or name no cause.",
                )
                break


_FUSING = [name for name, known in FRAMEWORKS.items() if known.fuses and known.compiles == EAGER]
"""Programs that differ from PyTorch eager by fusing and launching less only."""
Rates = dict[tuple[str, int], dict[str, list[float]]]


def _rates(records: Sequence[RunRecord]) -> Rates:
    """Throughputs by network and batch size, then by framework, those of both sides of an
    interleaved run."""
    found: Rates = defaultdict(lambda: defaultdict(list))
    for record in records:
        for spec, name in (
            (record.spec, "throughput_per_s"),
            (record.spec.other, "against_throughput_per_s"),
        ):
            rate = record.figure(name)
            if record.ok and rate is not None and spec and isinstance(spec.work, NetworkWork):
                key = spec.work.network, spec.work.batch_per_device
                found[key][spec.program.framework].append(rate)
    return found


def _mean(rates: Sequence[float]) -> float:
    return math.fsum(rates) / len(rates) if rates else 0.0


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
