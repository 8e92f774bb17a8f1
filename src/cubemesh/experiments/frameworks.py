"""Framework benchmark: step time of each framework and network, forward and in training.

The matrix of Addfor 2016 [000]: seven networks, batch size 64, the mean of 100 runs, forward and
forward+backward separately. Both are measured. Their difference is not the backward pass: a
training step also updates the weights, and its forward pass saves activations. A mean is elapsed
time over steps. Each framework has images in its usual layout. Unsupported combinations are shown
with their reason, missing frameworks with the command that installs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import Group, caveats, titled
from cubemesh.experiments.analysis.matrix import CellKey, Matrix
from cubemesh.experiments.analysis.per_workload import batch_size, per_workload
from cubemesh.experiments.analysis.published_rows import (
    FORWARD_BACKWARD_TIME,
    above_peak,
    nearest_table,
    time_rows,
)
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.schema import (
    Answer,
    Axis,
    Budget,
    Figure,
    Finding,
    Forward,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
)
from cubemesh.statistics import FEWEST_FOR_INTERVAL
from cubemesh.units import format_list

NETWORKS = (
    *("alexnet", "overfeat", "vgg16", "googlenet"),
    *("resnet-50", "resnet-101", "resnet-152"),
)
"""The seven of Addfor 2016 [000]; its "VGG" is taken to be VGG-16."""
QUICK_NETWORKS = ("alexnet", "googlenet", "resnet-50")
BATCH = 64
STEPS = 100
REDUCED_STEPS = 10
QUESTION = "Which framework trains fastest?"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `frameworks` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to run; default: the paper's seven, three with --quick."""
    frameworks: tuple[str, ...] = ()
    """Frameworks to run them with; default: all."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: the paper's 64, less on a CPU."""
    steps: int | None = None
    """Minimum number of steps to average; default: the paper's 100, fewer on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """Forward passes, then training steps, of each network with each framework."""
    batches = settings.batch_sizes or (reduction.batch(BATCH, context),)
    quick = context.scale is Scale.QUICK
    networks = settings.networks or (QUICK_NETWORKS if quick else NETWORKS)
    budget = _budget(settings, context)
    yield [
        RunSpec(
            work=kind(
                network=network,
                batch_per_device=batch,
                image_size=reduction.image_size(network, context),
            ),
            program=ProgramSettings(framework=framework, layout=entry(framework).layout),
            budget=budget,
        )
        for network in dict.fromkeys(networks)
        for batch in dict.fromkeys(batches)
        for framework in dict.fromkeys(settings.frameworks or known())
        for kind in (Forward, TrainSteps)
    ]


def known() -> tuple[str, ...]:
    """Every framework that trains (not null)."""
    return tuple(n for n, line in FRAMEWORKS.items() if line.read_script is None and line.trains)


def _budget(settings: Settings, context: Context) -> Budget:
    """At most as many windows as steps, but enough for an interval."""
    steps = settings.steps
    if steps is None:
        reduced = reduction.is_reduced(context) or context.scale is Scale.QUICK
        steps = REDUCED_STEPS if reduced else STEPS
    windows = min(context.budget.windows, max(FEWEST_FOR_INTERVAL, steps))
    return replace(context.budget, steps=steps, windows=windows)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `frameworks`, by batch size."""
    return per_workload(records, batch_size, lambda own: _answer(settings, own))


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    forward, training = _matrix(records, Forward), _matrix(records, TrainSteps)
    published = time_rows(training.groups)
    expected = NETWORKS if training.groups and not settings.networks else ()
    at = f", {batch_size(records[0])[0]}" if records else ""
    y = Axis(name="step", unit="ms", from_zero=True)
    passes = (
        (forward, "Forward", "forward"),
        (training, "Forward + backward + update", "forward-backward"),
    )
    return answer_of(
        EXPERIMENT,
        titled(f"Frameworks and networks{at}", records),
        records,
        findings=_findings(forward, training),
        tables=(
            *(m.table(title, "ms", _step_ms) for m, title, _ in passes if m.groups),
            *nearest_table(published, FORWARD_BACKWARD_TIME),
        ),
        charts=tuple(
            chart
            for m, title, name in passes
            for chart in m.chart(f"frameworks-{name}", f"{title}: step time", y, _step_ms)
        ),
        warnings=(
            *reduction.reductions(
                records,
                batch_per_device=BATCH,
                steps=STEPS,
                missing=[n for n in expected if n not in training.networks],
            ),
            *above_peak(published),
        ),
        notes=(
            "Mean step time, elapsed time over steps; ± is the 95 % interval over the windows of "
            "one process. Frameworks run in separate processes, which can differ by more "
            "(repeats=3 shows it): differences below 3 % are not significant.",
            "Forward passes (in training mode, with the loss) and training steps are measured "
            "separately. Their difference is not the backward pass: a training step also updates "
            "the weights and saves activations.",
            *_layouts(records),
        ),
    )


def _layouts(records: Sequence[RunRecord]) -> Iterator[str]:
    """The image layout of each framework, if they differ."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        program = record.spec.program
        found.setdefault(program.layout, {})[program.framework] = None
    if len(found) > 1:
        layouts = "; ".join(f"{layout} in {format_list(names)}" for layout, names in found.items())
        yield (
            f"Images have each framework's usual layout: {layouts}. --set layout=nhwc gives all "
            "the same."
        )


def _matrix(records: Sequence[RunRecord], kind: type[NetworkWork]) -> Matrix:
    return Matrix.of((r for r in records if isinstance(r.spec.work, kind)), _key)


def _key(record: RunRecord) -> CellKey:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network, record.spec.program.framework


def _step_ms(group: Group[CellKey]) -> Figure | None:
    return group.step_ms


def _findings(forward: Matrix, training: Matrix) -> Iterator[Finding]:
    if any(len(training.row(n)) > 1 for n in training.networks):
        yield from _fastest(training)
    for name, line in FRAMEWORKS.items():
        if line.compiles and (found := training.gains(name, line.compiles)):
            yield found
    yield from _forward_share(forward, training)
    for variant, why, networks in training.gaps():
        where = "" if variant in why else f"{variant}, {format_list(networks)}: "
        yield Finding(code="failed-run", text=f"{where}{why}.")


def _fastest(training: Matrix) -> Iterator[Finding]:
    """Number of networks on which each framework is fastest, then the two fastest on each network.
    Networks with a noisy run are not ranked."""
    wins: dict[str, int] = {}
    lines, noisy, compared = [], [], []
    for network in training.networks:
        row = training.row(network)
        if len(row) < 2:
            continue
        if bad := [group for group, _ in row if group.caveats]:
            noisy.append((network, bad))
            continue
        (first, fast), (second, slow) = row[:2]
        compared.append((network, first.key[1], second.key[1], ratio(fast, slow)))
    ranked = len(compared)
    judged = verdicts([found for *_, found in compared])
    for (network, a, b, found), verdict in zip(compared, judged, strict=True):
        if verdict.sign > 0:
            wins[a] = wins.get(a, 0) + 1
            text = f"{network} trains fastest with {a}: {format_ratio(found)} the speed of {b}."
            code = "fastest-framework"
        else:
            text = f"{network}: no significant difference of {a} and {b}, {format_ratio(found)}; "
            text += f"{verdict.unseen}."
            code = "equal-frameworks"
        lines.append(
            Finding.of(
                code=code,
                text=text,
                figure=found,
                unit=f"× {b}: {a}",
            )
        )
    if ranked == 1:
        lines = [replace(lines[0], question=QUESTION)]
    elif wins:
        yield _most_often_fastest(wins, ranked)
    elif ranked:
        yield Finding(
            code="no-fastest-framework",
            text="No framework is significantly fastest on any network.",
        )
    yield from lines
    if noisy:
        where = [f"{n} ({format_list(g.key[1] for g in bad)})" for n, bad in noisy]
        yield Finding(
            code="noisy-runs",
            text=f"Not ranked, because of noisy runs: {format_list(where)}.",
            remedy="Measure again on a quiet machine, with --no-cache.",
            caveats=caveats(*(group for _, bad in noisy for group in bad)),
        )


def _most_often_fastest(wins: dict[str, int], ranked: int) -> Finding:
    most = max(wins.values())
    best = format_list(name for name, times in wins.items() if times == most)
    several = list(wins.values()).count(most) > 1
    each = " each" if several else ""
    return Finding(
        code="fastest-frameworks",
        question=QUESTION,
        text=f"{best} {'are' if several else 'is'} fastest on {most} of {ranked} networks{each}.",
        value=most,
        unit=f"of {ranked}: {best}",
    )


def _forward_share(forward: Matrix, training: Matrix) -> Iterator[Finding]:
    shares = []
    for group in training.groups:
        own = forward.at(*group.key)
        a, b = (own.step_ms if own else None), group.step_ms
        if own and a and b:
            shares.append((ratio(a, b), own, group))
    if not shares:
        return
    low, high = (pick(shares, key=lambda s: s[0].value) for pick in (min, max))
    percents = [f"{100 * s.value:.0f} %" for s, *_ in (low, high)]
    span = f"{percents[0]} of the time of a training step."
    if percents[0] != percents[1]:
        ends = [
            f"{percent} ({', '.join(end[2].key)})"
            for percent, end in zip(percents, (low, high), strict=True)
        ]
        span = f"from {ends[0]} to {ends[1]} of the time of a training step."
    yield Finding(
        code="forward-share",
        text=f"A forward pass takes {span}",
        value=100 * high[0].value,
        unit="% of a step",
        caveats=caveats(*low[1:], *high[1:]),
    )


EXPERIMENT = Experiment(
    name="frameworks",
    question="How fast does each framework run each network, forward and in training?",
    settings=Settings,
    works=(Forward, TrainSteps),
    varies={"framework": "frameworks", "network": "networks", "batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[000] (its matrix and bar charts), [002], figure 14",
)
