"""Validation of forecasts: errors compared with published and stored results.

Nothing is measured. Published rates of several devices are compared with forecasts that know the
rate of one (rows.py has the selection) by models that have not seen their source or their machine
(fitting.py), published rates of one GPU likewise with forecasts from its datasheet (one_device.py),
claims of the papers
with the model (claims.py), and stored runs of several devices with forecasts from a run of one
(experiments/scaling/forecast.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.forecast import forecast_for
from cubemesh.papers.claims.forecasts import checked_claims
from cubemesh.papers.validation.fitting import published_left_out
from cubemesh.papers.validation.one_device import one_device_judged
from cubemesh.papers.validation.report import (
    StoredForecast,
    ValidationData,
    charts,
    findings,
    notes,
    tables,
)
from cubemesh.schema import Answer, RunRecord
from cubemesh.schema.work import TrainSteps

if TYPE_CHECKING:
    from cubemesh.store import Store


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `validation`."""

    worst: int = 20
    """Number of forecasts with the largest errors to list."""

    def __post_init__(self) -> None:
        if self.worst < 1:
            raise UsageError(f"worst={self.worst} must be at least 1.")


def plan(settings: Settings, context: Context) -> Plan:
    """Nothing is measured."""
    yield from ()


def gather(settings: Settings, store: Store, records: Sequence[RunRecord] = ()) -> list[RunRecord]:
    """Runs of several devices that train together, each with the latest run of one."""
    alone: dict[tuple[object, ...], RunRecord] = {}
    several: list[RunRecord] = []
    for record in store.records():
        if not isinstance(record.spec.work, TrainSteps) or not record.ok or not record.ranks:
            continue
        if record.spec.placement.devices == 1:
            alone[_alike(record)] = record
        elif record.spec.program.sync != "none":
            several.append(record)
    paired = [r for r in several if _alike(r) in alone]
    ones = {_alike(r): alone[_alike(r)] for r in paired}
    return [*ones.values(), *paired]


def _alike(record: RunRecord) -> tuple[object, ...]:
    """What a run of several devices has in common with that of one."""
    program, work = record.spec.program, record.spec.work
    assert isinstance(work, TrainSteps)
    device = record.ranks[0].device_name or record.ranks[0].device.partition(":")[0]
    return (
        *(record.key.machine_id, record.key.software_id, device, record.spec.placement.threads),
        *(work.network, work.image_size, work.batch_per_device),
        *(program.framework, program.precision, program.layout),
    )


def stored(records: Sequence[RunRecord]) -> tuple[StoredForecast, ...]:
    """Forecasts of stored runs of several devices, where they are possible."""
    alone = {_alike(r): r for r in records if r.spec.placement.devices == 1}
    found = []
    for record in records:
        one, rate = alone.get(_alike(record)), record.figure("throughput_per_s")
        if record.spec.placement.devices == 1 or one is None or rate is None:
            continue
        point = forecast_for(record, one)
        if not isinstance(point, str):
            found.append(StoredForecast(record=record, rate=rate, point=point))
    return tuple(found)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and scatter charts of published results and of these records."""
    without_source, without_machine = map(published_left_out, ("source", "machine"))
    data = ValidationData(
        several=tuple(one for fold in without_source for one in fold.judged),
        machines=tuple(one for fold in without_machine for one in fold.judged),
        unknown=tuple(one for fold in without_source for one in fold.unknown),
        alone=one_device_judged("source"),
        devices=one_device_judged("machine"),
        claims=checked_claims(),
        stored=stored(records),
        worst=settings.worst,
    )
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title="Forecasts compared with published and measured results",
        findings=tuple(findings(data)),
        tables=tuple(tables(data)),
        charts=tuple(charts(data)),
        run_ids=tuple(s.record.run_id for s in data.stored),
        notes=tuple(notes(data)),
    )


EXPERIMENT = Experiment(
    name="validation",
    question="How accurate are forecasts, compared with published and measured results?",
    settings=Settings,
    works=(),
    varies={},
    plan=plan,
    answer=answer,
    gather=gather,
    measures=False,
    papers="[002] (figures 5 to 7, table 1, section 4.4), [003] (figure 6), [004] (section 5.4)",
)
