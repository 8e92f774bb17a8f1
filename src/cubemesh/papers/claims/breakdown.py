"""What document 004 claims of where time goes, held against records with an attribution.

Its "occupancy rate" of 97.6 % stands beside a time distribution of CUDA operations and is no
occupancy of warps, which no network reaches: it is read as the share of time in which the GPU
works.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.claims.verdicts import close, untested
from cubemesh.schema import Claim, Figure, NetworkWork, RunRecord, Verdict

Reading = Callable[[RunRecord], Figure | None]


def waiting_share(claim: Claim, evidence: Evidence) -> Verdict:
    """The share of waiting (stream and event synchronise) in the host's runtime calls."""
    return _held(claim, evidence, "alexnet", 256, _waiting, "share of waiting in runtime calls")


def busy_at_32(claim: Claim, evidence: Evidence) -> Verdict:
    """The share of time in which the GPU works, of ResNet-50 at minibatch 32."""
    return _held(claim, evidence, "resnet-50", 32, _busy, "time in which the GPU works")


def busy_at_64(claim: Claim, evidence: Evidence) -> Verdict:
    """The same at minibatch 64."""
    return _held(claim, evidence, "resnet-50", 64, _busy, "time in which the GPU works")


def _held(
    claim: Claim, evidence: Evidence, network: str, batch: int, reading: Reading, words: str
) -> Verdict:
    found = [
        figure
        for record in evidence.records
        if _is(record, network, batch) and (figure := reading(record)) is not None
    ]
    what = f"{network} at minibatch {batch}, {words}"
    if not found:
        return untested(claim, f"{what}: not measured on a GPU")
    if not evidence.ran_on("P100"):
        return untested(claim, f"an absolute figure of a P100; measured here {what}", found[-1])
    return close(claim, found[-1], what)


def _is(record: RunRecord, network: str, batch: int) -> bool:
    work = record.spec.work
    return (
        record.ok
        and isinstance(work, NetworkWork)
        and (work.network, work.batch_per_device) == (network, batch)
    )


def _busy(record: RunRecord) -> Figure | None:
    return record.figures.get("device_busy_percent")


def _waiting(record: RunRecord) -> Figure | None:
    calls = next((b.rows for b in record.breakdowns if b.name == "runtime call"), ())
    total = math.fsum(row.seconds for row in calls)
    if not total:
        return None
    waiting = math.fsum(row.seconds for row in calls if row.name == "synchronise")
    return Figure(value=100 * waiting / total, unit="%")
