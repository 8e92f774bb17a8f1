"""Where does the time of a training step go, and what is lost?

Each network is run at each minibatch with an attribution (docs/attribution.md): the measured step
as a sum of measured parts, its work by category, by layer and by runtime call. Document 004 counted
CUDA calls (figures 7, 9, 11, 13) and took the share of waiting for the GPU as a sign of its
computing; that share is told beside the parts, which say the same directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.groups import Group, caveats, group_by, titled
from cubemesh.experiments.analysis.roofline import NOTE, rooflines
from cubemesh.experiments.analysis.utilization import ceiling_specs
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.time_breakdown.report import (
    Key,
    attributions,
    charts,
    longest_layers,
    name_of,
    told_by,
    why,
    work_by,
)
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.schema import (
    Answer,
    Finding,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
    warn,
)

DOCUMENTED = (
    ("cifarnet", 192),
    ("alexnet", 256),
    ("googlenet", 256),
    ("resnet-50", 32),
    ("resnet-50", 64),
)
"""What figures 7, 9, 11 and 13 of document 004 (and its section 5.4) take apart."""
SMALL = (("little-cnn", 8),)
"""Where a step is short, and most is lost around it."""
LEAST = 8
"""The smallest minibatch that is chosen."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `time-breakdown` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to take apart; none given is document 004's four and LittleCNN, LittleCNN alone with
    --quick."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes for each; default: the paper's (8 for other networks), less on a CPU."""
    ceiling: bool = True
    """Whether to measure the fastest matrix product and copy too, to hold the layers against."""


def plan(settings: Settings, context: Context) -> Plan:
    """The ceilings that layers are held against, then a run with attribution for each network and
    minibatch."""
    budget = replace(context.budget, repeats=1)
    roof = ceiling_specs(ProgramSettings(), budget) if settings.ceiling else []
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
    """(network, minibatch), each once."""
    usual = SMALL if context.scale is Scale.QUICK else (*SMALL, *DOCUMENTED)
    networks = settings.networks or tuple(network for network, _ in usual)
    if settings.batch_sizes:
        return tuple(dict.fromkeys((n, b) for n in networks for b in settings.batch_sizes))
    known: dict[str, list[int]] = {}
    for network, batch in (*SMALL, *DOCUMENTED):
        known.setdefault(network, []).append(max(LEAST, reduction.batch(batch, context)))
    return tuple(dict.fromkeys((n, b) for n in networks for b in known.get(n, [LEAST])))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `time-breakdown`."""
    steps = [r for r in records if isinstance(r.spec.work, TrainSteps)]
    groups = group_by(steps, _key)
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled("Where the time of a step goes", steps),
        findings=tuple(_findings(groups)),
        tables=(
            *attributions(groups),
            *work_by(groups, "category", "Work of a step by category"),
            *longest_layers(groups),
            *work_by(groups, "runtime call", "Calls into the device's runtime in a step"),
        ),
        charts=(*charts(groups), *rooflines(r for g in groups if (r := told_by(g)))),
        warnings=(*_reductions(steps), *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            NOTE,
            "Every part but other is measured by itself; other is the mean step less all parts, "
            "and says how far they can be believed. docs/attribution.md has what each part is.",
            "Categories, layers and runtime calls are of profiled steps. Their rows may overlap in "
            "time: they add up to the profiler's total, not to the step.",
        ),
    )


def _reductions(records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    """The warning `reduced` where networks of the document were run at less than it ran them."""
    told = []
    for group in group_by(records, lambda r: _key(r)[0]):
        documented = [batch for network, batch in DOCUMENTED if network == group.key]
        largest = max(_key(r)[1] for r in group.records)
        if documented and largest < max(documented):
            told.append(f"{group.key} at minibatch {largest} for {max(documented)}")
    if not told:
        return ()
    cause = f"Less than the document: {', '.join(told)}. {reduction.RULE}"
    return (warn("reduced", cause, "Use --full, or name the settings."),)


def _key(record: RunRecord) -> Key:
    assert isinstance(record.spec.work, TrainSteps)
    return record.spec.work.network, record.spec.work.batch_per_device


def _findings(groups: Sequence[Group[Key]]) -> Iterator[Finding]:
    found = [
        (group, loss)
        for group in groups
        if (record := told_by(group)) and (loss := largest_bottleneck(record.parts, record.spec))
    ]
    worst = max(found, key=lambda pair: pair[1].share, default=None)
    for group, loss in found:
        card = worst is not None and group is worst[0] and loss.name != ""
        yield Finding(
            text=f"{group.key[0]}: {loss.text}.",
            question="What does a step lose most time to?" if card else None,
            value=100 * loss.share if card else None,
            unit=f"% {loss.name.replace('_', ' ')}" if card else "",
            remedy=f"{loss.remedy[0].upper()}{loss.remedy[1:]}." if loss.remedy else "",
            caveats=caveats(group),
        )
    for group in groups:
        if told_by(group) is None:
            yield Finding(text=f"{name_of(group.key)}: {why(group)}.")


EXPERIMENT = Experiment(
    name="time-breakdown",
    question="Where does the time of a training step go, and what is lost?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"network": "networks", "batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    documents="004 figures 7, 9, 11 and 13",
)
