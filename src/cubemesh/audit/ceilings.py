"""Ceilings: nothing is faster than the fastest that its own parts and its device can do.

A rate of counted operations may exceed a ceiling where a fast algorithm needs fewer operations; the
run then has the warning `above-ceiling` or `above-peak`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cubemesh.audit.evidence import Evidence, name_of, shown
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.audit.same_workload import differ
from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.machines.catalogue import find
from cubemesh.schema import Input, RunRecord, TrainSteps
from cubemesh.units import format_quantity

MOST_PERCENT = 101.0
_AGAIN = "Measure the ceiling again on an idle machine: cubemesh run ceilings --no-cache."


def above_limits(evidence: Evidence) -> Iterator[Inconsistency]:
    """Runs above a measured ceiling or the datasheet, without a warning; links likewise."""
    for record in evidence.records:
        codes = {warning.code for warning in record.warnings}
        for name, code, what in (
            ("mfu_percent", "above-peak", "the peak of its datasheet"),
            ("ceiling_mfu_percent", "above-ceiling", "the fastest matrix product"),
        ):
            percent = record.figure(name)
            if percent is not None and percent > MOST_PERCENT and code not in codes:
                yield inconsistency(
                    code,
                    f"{name_of(record)} reaches {percent:.0f} % of {what}, 100 % at most.",
                    evidence.place(record.run_id),
                    _AGAIN,
                )
        yield from _links(evidence, record)


def _links(evidence: Evidence, record: RunRecord) -> Iterator[Inconsistency]:
    rate = record.figure("bus_bytes_per_s")
    sheet = find(record.ranks[0].device_name) if rate and record.ranks else None
    limit = sheet.value("link_bytes_per_s") if sheet else None
    if rate and limit and rate > limit * MOST_PERCENT / 100:
        yield inconsistency(
            "above-link",
            f"A bus bandwidth of {format_quantity(rate, 'B/s')} on links of "
            f"{format_quantity(limit, 'B/s')} ({record.ranks[0].device_name}).",
            evidence.place(record.run_id),
            "Check the results for wrong elements: cubemesh collectives --checks 1.",
        )


def sustained(evidence: Evidence) -> Iterator[Inconsistency]:
    """Rows with a sustained rate above the fastest."""
    for row in evidence.rows:
        mean, best = row.value("sustained"), row.value("fastest")
        if mean is not None and best is not None and mean > best * MOST_PERCENT / 100:
            unit = next(c.unit for c in row.table.columns if c.name == "sustained")
            yield inconsistency(
                "sustained-above-fastest",
                f"{format_quantity(mean, unit)} sustained, and {format_quantity(best, unit)} at "
                "the fastest.",
                evidence.place(row.run_id, table=row.table.title),
                _AGAIN,
            )


def input_stages(evidence: Evidence) -> Iterator[Inconsistency]:
    """Training that is faster than a stage of its input, or than without input; repeats are
    pooled, as in the answer."""

    def groups(work: type) -> list[Group[str]]:
        found = (r for r in evidence.records if r.ok and isinstance(r.spec.work, work))
        return group_by(found, lambda record: record.spec.workload_id)

    trained = groups(TrainSteps)
    for group in trained:
        record = group.records[0]
        for stage in groups(Input):
            work = stage.records[0].spec.work
            assert isinstance(work, Input)
            if _is_stage_of(stage.records[0], record):
                yield from _contradiction("above-stage", evidence, group, stage, work.stage)
        for resident in trained:
            if _same_without_input(resident.records[0], record):
                what = "one batch on the device"
                yield from _contradiction("above-resident", evidence, group, resident, what)


def _contradiction(
    code: str, evidence: Evidence, group: Group[str], limit: Group[str], what: str
) -> Iterator[Inconsistency]:
    """Where `group` is significantly faster than its `limit`."""
    fast, slow = group.throughput, limit.throughput
    if fast is None or slow is None or fast.value <= slow.value or not differ(fast, slow):
        return
    ids = group.run_id, limit.run_id
    yield inconsistency(
        code,
        f"{name_of(group.records[0])}, trains on {_input_of(group.records[0])} at {shown(fast)}, "
        f"and {what} reaches {shown(replace(slow, unit=fast.unit))}.",
        evidence.place(*ids, table=evidence.table_with(*ids)),
        "Stop other programs and measure both again in one session.",
    )


def _input_of(record: RunRecord) -> str:
    work = record.spec.work
    assert isinstance(work, TrainSteps)
    return "batches from the host" if work.data == "synthetic" else f"data={work.data}"


def _is_stage_of(stage: RunRecord, record: RunRecord) -> bool:
    a, b = stage.spec.work, record.spec.work
    program = record.spec.program
    assert isinstance(a, Input)
    assert isinstance(b, TrainSteps)
    same = (a.data, a.data_path, a.image_size, a.network, a.batch_per_device) == (
        b.data,
        b.data_path,
        b.image_size,
        b.network,
        b.batch_per_device,
    )
    if stage.key.data_id != record.key.data_id:  # other files under the same path
        return False
    if not same or program.cache_decoded or record.spec.placement != stage.spec.placement:
        return False
    if a.stage == "read":
        return program.drop_page_cache and stage.spec.program.drop_page_cache
    return a.stage == "decode" and (
        stage.spec.program.input_threads == program.input_threads
        and stage.spec.program.decode_location == program.decode_location
    )


def _same_without_input(resident: RunRecord, record: RunRecord) -> bool:
    a, b = resident.spec, record.spec
    if a.program.data_location != "device" or b.program.data_location == "device":
        return False
    assert isinstance(a.work, TrainSteps)
    assert isinstance(b.work, TrainSteps)
    work = replace(b.work, data=a.work.data, data_path=a.work.data_path, own_data=None)
    program = replace(
        b.program,
        data_location="device",
        drop_page_cache=False,
        cache_decoded=False,
        input_threads=a.program.input_threads,
        decode_location=a.program.decode_location,
    )
    return a.work == work and a.program == program and a.placement == b.placement
