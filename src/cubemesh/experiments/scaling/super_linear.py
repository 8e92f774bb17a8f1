"""Why scaling is superlinear: what the records of one and of several devices show.

N devices train more than N times as fast as one where the one is slowed by what the others are
spared (Gawande et al. 2018 [004], section 5.3: memory and cudaFree). Four causes leave a trace:

    allocator      time of malloc and free calls in a step of one device (profiled GPU steps)
    memory         one device near its capacity, several not: the allocator then frees and retries
    cache          on a CPU the working set of a step fits into a rank's caches, but not with one
    computation    it shrinks more than the batch, so one device computes less efficiently

Working set: the memory forecast of a step (networks/memory.py). A cache that ranks share is counted
in equal parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh import networks
from cubemesh.experiments.analysis.groups import caveats
from cubemesh.experiments.scaling.analysis import efficiency, profiled_record
from cubemesh.experiments.scaling.design import ScalingGroup
from cubemesh.machines.catalogue import find
from cubemesh.measure.attribution.attribution import COMPUTE
from cubemesh.measure.attribution.bottlenecks import mean_parts
from cubemesh.networks.memory import forecast, memory_settings
from cubemesh.schema import Finding, NetworkWork, RunRecord
from cubemesh.units import format_bytes, format_devices, format_list, format_seconds

NEAR_CAPACITY = 0.9
"""Fraction of a GPU's memory from which its allocator may have to free and retry."""
MIN_SHARE = 0.01
"""Smallest fraction of the ideal step that is named."""


def super_linear_finding(several: ScalingGroup, one: ScalingGroup, name: str) -> Iterator[Finding]:
    """The evidence for an efficiency above 100 %, or that the records have none."""
    figure = efficiency(several, one)
    if figure is None or figure.value <= 100 or (figure.low is not None and figure.low <= 100):
        return
    shown, missing = evidence(several, one)
    text = f"{name}, {format_devices(several.key[0])}: superlinear ({figure.value:.1f} %)."
    if shown:
        text += f" The records show: {format_list(shown)}."
    else:
        text += " The records do not show why"
        text += f": {format_list(missing)}." if missing else "."
    yield Finding(
        code="superlinear-scaling",
        text=text,
        value=figure.value,
        unit="%",
        remedy="" if shown else "Profile the steps (attribution=true), with --full.",
        caveats=caveats(several, one),
    )


def evidence(several: ScalingGroup, one: ScalingGroup) -> tuple[list[str], list[str]]:
    """(what the records show, what they lack), in words."""
    shown, missing = [], []
    for check in (_allocator, _memory, _cache, _computation):
        found, lacking = check(several, one)
        shown += found
        missing += lacking
    return shown, missing


Found = tuple[list[str], list[str]]


def _allocator(several: ScalingGroup, one: ScalingGroup) -> Found:
    seconds = [_allocator_s(group.ok) for group in (one, several)]
    if all(record.ranks and record.ranks[0].device == "cpu" for record in one.ok):
        return [], []  # a CPU's allocator is no call into a runtime
    before, after = seconds
    if before is None or after is None:
        return [], ["allocator calls were not profiled"]
    step_s = one.median_of("step_s") or 0.0
    share = _batch_share(several, one)
    if before * share - after < MIN_SHARE * step_s * share:
        return [], []
    return [
        f"allocator calls (malloc and free) take {format_seconds(before)} of a step on one device "
        f"and {format_seconds(after)} on each of {several.key[0]}"
    ], []


def _allocator_s(records: Sequence[RunRecord]) -> float | None:
    """Seconds of malloc and free calls in a step; None without profiled runtime calls."""
    for record in records:
        for breakdown in record.breakdowns:
            if breakdown.name == "runtime call":
                return sum(row.seconds for row in breakdown.rows if row.name in ("malloc", "free"))
    return None


def _memory(several: ScalingGroup, one: ScalingGroup) -> Found:
    rank = one.ok[0].ranks[0] if one.ok[0].ranks else None
    if rank is None or rank.device == "cpu":
        return [], []
    sheet = find(rank.device_name)
    capacity = None if sheet is None else sheet.value("memory_bytes")
    used = [group.median_of("peak_memory_bytes") for group in (one, several)]
    if capacity is None or used[0] is None or used[1] is None:
        return [], ["the memory in use, or the device's, is unknown"]
    fractions = [bytes_ / capacity for bytes_ in used if bytes_ is not None]
    if fractions[0] < NEAR_CAPACITY or fractions[1] >= NEAR_CAPACITY:
        return [], []
    return [
        f"one device uses {100 * fractions[0]:.0f} % of its memory, each of {several.key[0]} "
        f"{100 * fractions[1]:.0f} %"
    ], []


def _cache(several: ScalingGroup, one: ScalingGroup) -> Found:
    own, alone = several.ok[0], one.ok[0]
    if not alone.ranks or alone.ranks[0].device != "cpu":
        return [], []
    caches = [_cache_bytes(record) for record in (alone, own)]
    sets = [_working_set(record) for record in (alone, own)]
    if None in caches or None in sets:
        return [], ["the caches of the CPU are unknown"]
    (cache_one, cache_own), (set_one, set_own) = caches, sets
    assert cache_one is not None
    assert cache_own is not None
    assert set_one is not None
    assert set_own is not None
    if set_one <= cache_one or set_own > cache_own:
        return [], []
    return [
        f"the working set of a step fits the caches of a rank on {several.key[0]} devices "
        f"({format_bytes(set_own)} in {format_bytes(cache_own)}) and not those of one device "
        f"({format_bytes(set_one)} in {format_bytes(cache_one)})"
    ], []


def _cache_bytes(record: RunRecord) -> int | None:
    """Bytes of the caches of a rank: its own, and an equal part of those it shares."""
    found = []
    for rank in record.ranks:
        if rank.private_cache_bytes is None or rank.shared_cache_bytes is None:
            return None
        found.append(rank.private_cache_bytes + rank.shared_cache_bytes // len(record.ranks))
    return min(found, default=None)


def _working_set(record: RunRecord) -> int | None:
    work = record.spec.work
    if not isinstance(work, NetworkWork):
        return None
    network = networks.build_for(work)
    settings = memory_settings(record.spec, "cpu", network)
    return forecast(network, work.batch_per_device, **settings).total_bytes


def _computation(several: ScalingGroup, one: ScalingGroup) -> Found:
    profiled, single = profiled_record(several), profiled_record(one)
    if profiled is None or single is None:
        return [], ["the steps were not profiled"]
    share = _batch_share(several, one)
    ideal = share * mean_parts(single).get(COMPUTE, 0.0)
    saved = ideal - mean_parts(profiled).get(COMPUTE, 0.0)
    if not ideal or saved < MIN_SHARE * ideal:
        return [], []
    return [
        f"computation takes {format_seconds(saved)} ({100 * saved / ideal:.0f} %) less than its "
        f"share of one device's"
    ], []


def _batch_share(several: ScalingGroup, one: ScalingGroup) -> float:
    """Batch size of each of several devices over that of one."""
    batches = [group.records[0].spec.batch_per_device or 1 for group in (several, one)]
    return batches[0] / batches[1]
