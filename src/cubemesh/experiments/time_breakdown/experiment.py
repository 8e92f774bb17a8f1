"""Time breakdown of a training step: its parts, and its work by category, layer and runtime call.

Each network runs at each batch size with attribution (docs/attribution.md): the measured step
broken down into measured parts. Gawande et al. 2018 [004] counted CUDA calls (figures 7, 9, 11, 13)
and took the fraction of time waiting for the GPU as a sign of computation; that fraction is shown
with the parts, which state it directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, titled
from cubemesh.experiments.analysis.roofline_chart import NOTE, lookup_finding, rooflines
from cubemesh.experiments.analysis.utilization_columns import ceiling_specs
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.scaling.analysis import profiled_record
from cubemesh.experiments.time_breakdown.report import (
    Key,
    attributions,
    charts,
    longest_layers,
    name_of,
    why,
    work_by,
)
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.schema import (
    Answer,
    Finding,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
)

PAPER_POINTS = (
    ("cifarnet", 192),
    ("alexnet", 256),
    ("googlenet", 256),
    ("resnet-50", 32),
    ("resnet-50", 64),
)
"""Points of figures 7, 9, 11 and 13 of Gawande et al. 2018 [004], and of its section 5.4."""
SMALL = (("little-cnn", 8),)
"""A point with a short step, and a large overhead."""
MIN_BATCH = 8
"""Smallest default batch size."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `time-breakdown` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to profile; default: the paper's four and little-cnn, with --quick little-cnn."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes for each network; default: the paper's (8 for other networks), less on a CPU."""
    ceiling: bool = True
    """Also measure the fastest matrix product and copy, as ceilings of the layers."""


def plan(settings: Settings, context: Context) -> Plan:
    """The ceilings, then a run with attribution for each network and batch size."""
    budget = replace(context.budget, repeats=1)
    roof = ceiling_specs(budget) if settings.ceiling else []
    yield roof + [
        RunSpec(
            work=TrainSteps(
                network=network,
                batch_per_device=batch,
                image_size=reduction.image_size(network, context),
            ),
            budget=replace(context.budget, attribution=True),
        )
        for network, batch in _points(settings, context)
    ]


def _points(settings: Settings, context: Context) -> Sequence[Key]:
    """(network, batch size), each once."""
    usual = SMALL if context.scale is Scale.QUICK else (*SMALL, *PAPER_POINTS)
    networks = settings.networks or tuple(network for network, _ in usual)
    if settings.batch_sizes:
        return tuple(dict.fromkeys((n, b) for n in networks for b in settings.batch_sizes))
    known: dict[str, list[int]] = {}
    for network, batch in (*SMALL, *PAPER_POINTS):
        known.setdefault(network, []).append(max(MIN_BATCH, reduction.batch(batch, context)))
    return tuple(dict.fromkeys((n, b) for n in networks for b in known.get(n, [MIN_BATCH])))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `time-breakdown`."""
    steps = [r for r in records if isinstance(r.spec.work, TrainSteps)]
    groups = group_by(steps, _key)
    return answer_of(
        EXPERIMENT,
        titled("Breakdown of the step time", steps),
        records,
        findings=(*_findings(groups), *_lookups(groups)),
        tables=(
            *attributions(groups),
            *work_by(groups, "category", "Work of a step by category"),
            *longest_layers(groups),
            *work_by(groups, "segment", "Implementation of each segment"),
            *work_by(groups, "runtime call", "Runtime calls in a step"),
        ),
        charts=(*charts(groups), *rooflines(r for g in groups if (r := profiled_record(g)))),
        warnings=_reductions(steps),
        notes=(
            NOTE,
            "Every part except unattributed is measured; that is the mean step minus all parts "
            "and indicates their accuracy. docs/attribution.md defines the parts.",
            "Categories, layers and runtime calls are of profiled steps. Their rows may overlap in "
            "time: they add up to the profiler's total, not to the step.",
        ),
    )


def _lookups(groups: Sequence[Group[Key]]) -> Iterator[Finding]:
    """What bounds the lookups of networks with embedding tables."""
    for group in groups:
        record = profiled_record(group)
        found = None if record is None else lookup_finding(record)
        if found is not None:
            yield found


def _reductions(records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    """The warning `reduced` for networks that ran at smaller batch sizes than in the paper."""
    less = []
    for group in group_by(records, lambda r: _key(r)[0]):
        documented = [batch for network, batch in PAPER_POINTS if network == group.key]
        largest = max(_key(r)[1] for r in group.records)
        if documented and largest < max(documented):
            less.append(f"{group.key} at batch size {largest} instead of {max(documented)}")
    return reduction.reduced(less, reduction.rule_of(records))


def _key(record: RunRecord) -> Key:
    assert isinstance(record.spec.work, TrainSteps)
    return record.spec.work.network, record.spec.work.batch_per_device


def _findings(groups: Sequence[Group[Key]]) -> Iterator[Finding]:
    found = [
        (group, record, loss)
        for group in groups
        if (record := profiled_record(group)) and (loss := largest_bottleneck(record))
    ]
    worst = max(found, key=lambda one: one[2].share, default=None)
    for group, record, loss in found:
        card = worst is not None and group is worst[0] and loss.name != ""
        yield Finding(
            code="largest-overhead",
            text=f"{group.key[0]}: {loss.text}.",
            question="What is the largest overhead of a step?" if card else None,
            value=100 * loss.share if loss.name else None,
            unit=f"% {loss.name.replace('_', ' ')}" if loss.name else "",
            remedy=f"{loss.remedy[0].upper()}{loss.remedy[1:]}." if loss.remedy else "",
            caveats=caveats(group),
            run_id=record.run_id,
        )
    for group in groups:
        if profiled_record(group) is None:
            yield Finding(code="no-attribution", text=f"{name_of(group.key)}: {why(group)}.")


EXPERIMENT = Experiment(
    name="time-breakdown",
    question="What takes the time of a training step, and what is the largest overhead?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"network": "networks", "batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[004], figures 7, 9, 11 and 13",
)
