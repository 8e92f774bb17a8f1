"""Batch size sweeps and the largest batch size that fits in memory.

A sweep doubles the batch size as long as a run at twice the size fits the time budget of the scale,
assuming that it takes twice the time.

`batch_sizes=auto` searches for the limit: doubling from 8; the first size refused memory is the
upper bound, the last that fitted the lower one, and the gap is halved down to 1/8 of the power of
two below. If the refused run forecast a size that fits, that one is tried first. Each run has a
worker under a memory limit, so running out of memory is an outcome. A doubling that is forecast to
need over twice the available memory is not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cubemesh.experiments.core.experiment import Plan, Scale
from cubemesh.networks import build_for
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import Budget, Finding, Machine, NetworkWork, RunRecord, RunSpec, Status
from cubemesh.units import format_bytes

RUN_BUDGET_S = {Scale.QUICK: 8.0, Scale.DEFAULT: 40.0, Scale.FULL: float("inf")}
"""Longest estimated run of a sweep."""
FIRST = 8
_PARTS = 8
"""The search ends within 1/8 of the power of two below the answer."""
_HOPELESS = 2
"""A forecast of more than this multiple of the available memory is not tried."""
_FITS = (Status.OK, Status.DIVERGED)
"""A run that diverged did fit."""


def search(
    specs_of: Callable[[int], Sequence[RunSpec]],
    machine: Machine,
    *,
    most: int | None = None,
    may_continue: Callable[[RunRecord], bool] = lambda record: True,
    also: Sequence[RunSpec] = (),
) -> Plan:
    """Part of a plan: the runs that find the largest batch size that fits in memory.

    `most` is the upper limit (the number of samples). `may_continue` decides, from the last record,
    whether a run at twice the batch size is affordable. The specs in `also` are yielded with the
    first batch size, so that wrong settings are found before anything is measured.
    """
    low, high, batch = 0, None, min(FIRST, most or FIRST)
    advice: object = None
    while high is None:
        got = yield [*also, *specs_of(batch)]
        records = [r for r in got if r.spec.batch_per_device == batch]
        also = ()
        if any(r.outcome.status is Status.OOM for r in records):
            high = batch
            advice = records[-1].outcome.facts.get("largest_batch_that_fits")
            break
        if not all(r.outcome.status in _FITS for r in records):
            return
        low, batch = batch, min(2 * batch, most or 2 * batch)
        if batch == low or not may_continue(records[-1]):
            return
        if _is_hopeless(records[-1], batch, machine):
            high = batch
    while high - low > _grain(low):
        middle = (low + high) // 2
        if isinstance(advice, int) and low < advice < high:
            middle = max(low + 1, advice - advice % _grain(advice))
            advice = None
        last = yield specs_of(middle)
        if any(r.outcome.status is Status.OOM for r in last):
            high = middle
        elif all(r.outcome.status in _FITS for r in last):
            low = middle
        else:
            return


def _grain(batch: int) -> int:
    return max(1, (1 << max(0, batch.bit_length() - 1)) // _PARTS)


def _is_hopeless(record: RunRecord, batch: int, machine: Machine) -> bool:
    """Whether `batch` is forecast to need over twice the memory that `record` had."""
    limit_bytes = record.spec.budget.memory_limit_bytes
    device = device_of(record)
    if limit_bytes is None and record.ranks:
        gpu = device.startswith("cuda")
        limit_bytes = machine.gpus[0].memory_bytes if gpu else machine.memory.usable_bytes
    needs_bytes = forecast_bytes(record.spec, batch, device)
    return limit_bytes is not None and needs_bytes > _HOPELESS * limit_bytes


def device_of(record: RunRecord) -> str:
    """The device of the first rank; `cpu` if the run ended before it was known."""
    return record.ranks[0].device if record.ranks else "cpu"


def forecast_bytes(spec: RunSpec, batch: int, device: str) -> int:
    """The memory forecast of `spec` at another batch size per device, on `device`."""
    assert isinstance(spec.work, NetworkWork)
    at_batch = replace(spec, work=replace(spec.work, batch_per_device=batch))
    return strategy(spec.program.sync).memory(at_batch, build_for(spec.work), device).total_bytes


class MaxBatch(NamedTuple):
    """The result of a search for the largest batch size."""

    fits: int | None
    """The largest batch size that ran."""
    refused: int | None
    """The smallest that ran out of memory."""


def max_batch(records: Sequence[RunRecord]) -> MaxBatch:
    """The result of a search, from its records."""
    tried = [(b, r.outcome.status) for r in records if (b := r.spec.batch_per_device)]
    refused = {batch for batch, status in tried if status is Status.OOM}
    failed = {batch for batch, status in tried if status not in _FITS}
    fits = {batch for batch, _ in tried} - failed
    return MaxBatch(max(fits, default=None), min(refused, default=None))


def max_batch_findings(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """The largest batch size that fits, the smallest that does not, and the memory forecast for
    both; none without records of networks."""
    records = [r for r in records if isinstance(r.spec.work, NetworkWork)]
    if not records:
        return
    fits, refused = max_batch(records)
    spec, device = records[-1].spec, device_of(records[-1])
    if fits is not None:
        which = "that fits" if refused is not None else "measured"
        needs = format_bytes(forecast_bytes(spec, fits, device))
        text = f"The largest batch size {which} is {fits} (forecast {needs})"
    else:
        text = "No batch size fits" if refused is not None else "No batch size ran"
    if refused is not None:
        needs = format_bytes(forecast_bytes(spec, refused, device))
        text += f"; {refused} ran out of memory (forecast {needs})."
    else:
        text += "; no run was out of memory."
    yield Finding(code="max-batch-size", text=text, value=fits, unit="samples")


def may_double(record: RunRecord, scale: Scale) -> bool:
    """Whether a run at twice the batch size of `record` fits the time budget of one run."""
    step_s = record.figure("step_s")
    if step_s is None:
        return False
    return estimated_run_s(2 * step_s, record.spec.budget) <= RUN_BUDGET_S[scale]


def estimated_run_s(step_s: float, budget: Budget) -> float:
    """Estimated seconds of a run: its steps, and half as many to warm up."""
    return max(budget.seconds, step_s * max(budget.steps, budget.windows)) * 1.5
