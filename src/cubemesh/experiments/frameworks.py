"""Which framework runs which network how fast on this device, forward and in training?

Document 000's matrix: seven networks, 64 samples a minibatch, the mean of 100 runs, forward and
forward+backward apart. Both are measured, as work of their own. The difference between them is not
the backward pass and is never called so: a training step also updates the weights, and its forward
pass keeps values that one alone does not. A mean is elapsed time over steps. Each framework has its
images in its own layout. What it cannot do is shown in its place with the reason; one that is not
installed with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.groups import Group, caveats, titled
from cubemesh.experiments.analysis.matrix import CellKey, Matrix
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.published_rows import above_peak, time_rows, time_table
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, significance
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
"""Document 000's seven; its "VGG" is taken for VGG-16."""
QUICK_NETWORKS = ("alexnet", "googlenet", "resnet-50")
BATCH = 64
RUNS = 100
REDUCED_RUNS = 10
WHICH = "Which framework trains fastest?"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `frameworks` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to run; none given is document 000's seven, three with --quick."""
    frameworks: tuple[str, ...] = ()
    """Frameworks to run them with; none given is all that cubemesh knows."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: the paper's 64, less on a CPU."""
    steps: int | None = None
    """Minimum number of steps to average; default: the paper's 100, fewer on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """Forward passes, then training steps, of each network with each framework."""
    batches = settings.batch_sizes or (reduction.batch(BATCH, context),)
    networks = settings.networks or (QUICK_NETWORKS if _quick(context) else NETWORKS)
    budget = _effort(settings, context)
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
    """Every framework that computes for real."""
    return tuple(name for name, line in FRAMEWORKS.items() if line.read_script is None)


def _quick(context: Context) -> bool:
    return context.scale is Scale.QUICK


def _effort(settings: Settings, context: Context) -> Budget:
    """As many windows as an interval needs, and no more than there are runs beyond that."""
    runs = settings.steps
    if runs is None:
        runs = REDUCED_RUNS if reduction.is_reduced(context) or _quick(context) else RUNS
    usual = context.budget
    windows = min(usual.windows, max(FEWEST_FOR_INTERVAL, runs))
    return replace(usual, steps=runs, windows=windows)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `frameworks`, by batch size."""
    return per_workload(
        records,
        lambda record: (f"batch size {record.spec.batch_per_device}",),
        lambda own: _answer(settings, own),
    )


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    forward, training = _matrix(records, Forward), _matrix(records, TrainSteps)
    beside = time_rows(training.groups)
    batches = sorted({b for r in records if (b := r.spec.batch_per_device)})
    at = f"minibatch {', '.join(map(str, batches))}" if batches else "no minibatch"
    y = Axis(name="a minibatch", unit="ms", from_zero=True)
    passes = (
        (forward, "Forward", "forward"),
        (training, "Forward + backward + update", "forward-backward"),
    )
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(f"Frameworks and networks, {at}", records),
        findings=tuple(_findings(forward, training)),
        tables=(
            *(m.table(title, "ms", _step_ms) for m, title, _ in passes if m.groups),
            *time_table(beside),
        ),
        charts=tuple(
            chart
            for m, title, name in passes
            for chart in m.chart(f"frameworks-{name}", f"{title}: time of a minibatch", y, _step_ms)
        ),
        warnings=(
            *reduction.reductions(
                records,
                batch_per_device=BATCH,
                steps=RUNS,
                missing=() if settings.networks else _left_out(training),
            ),
            *above_peak(beside),
            *(w for r in records for w in r.warnings),
        ),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            "Mean time of a minibatch, elapsed time over steps; ± is the 95 % interval over the "
            "windows of one process. Frameworks run in processes of their own, and a fresh process "
            "can differ by more (repeats=3 shows it): less than 3 % is called level.",
            "Forward (in training mode, with the loss) and a training step are measured apart. "
            "Their difference is not the backward pass: a training step also updates the weights "
            "and keeps values for its way back.",
            *_layouts(records),
        ),
    )


def _layouts(records: Sequence[RunRecord]) -> Iterator[str]:
    """Which framework had its images in which layout, where they differ."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        program = record.spec.program
        found.setdefault(program.layout, {})[program.framework] = None
    if len(found) > 1:
        told = "; ".join(f"{layout} in {format_list(names)}" for layout, names in found.items())
        yield (
            f"Images lie as each framework's users lay them: {told}. --set layout=nhwc gives all "
            "of them the same."
        )


def _matrix(records: Sequence[RunRecord], kind: type[NetworkWork]) -> Matrix:
    return Matrix.of((r for r in records if isinstance(r.spec.work, kind)), _key)


def _key(record: RunRecord) -> CellKey:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network, record.spec.program.framework


def _step_ms(group: Group[CellKey]) -> Figure | None:
    return group.step_ms


def _left_out(training: Matrix) -> list[str]:
    return [n for n in NETWORKS if training.groups and n not in training.networks]


def _findings(forward: Matrix, training: Matrix) -> Iterator[Finding]:
    if any(len(training.row(n)) > 1 for n in training.networks):
        yield from _fastest(training)
    for name, line in FRAMEWORKS.items():
        if line.compiles and (found := training.gains(name, line.compiles)):
            yield found
    yield from _forward_share(forward, training)
    yield from _gaps(training)


def _fastest(training: Matrix) -> Iterator[Finding]:
    """Who is the fastest how often, then each network with its two fastest. A network of which a
    run was disturbed is not ranked: the disturbed framework may be the fastest on a quiet machine.
    """
    wins: dict[str, int] = {}
    lines, ranked, disturbed = [], 0, []
    for network in training.networks:
        row = training.row(network)
        if len(row) < 2:
            continue
        if slips := [group for group, _ in row if group.caveats]:
            disturbed.append((network, slips))
            continue
        ranked += 1
        (first, fast), (second, slow) = row[:2]
        found = ratio(fast, slow)
        a, b = first.key[1], second.key[1]
        if significance(found) > 0:
            wins[a] = wins.get(a, 0) + 1
            text = f"{network} trains fastest with {a}: {format_ratio(found)} the speed of {b}."
        else:
            text = f"{network}: {a} and {b} are level, {format_ratio(found)}."
        lines.append(
            Finding(
                text=text, value=found.value, unit=f"× {b}: {a}", low=found.low, high=found.high
            )
        )
    if ranked == 1:
        lines = [replace(lines[0], question=WHICH)]
    elif wins:
        yield _winners(wins, ranked)
    elif ranked:
        yield Finding(text="No framework trains any network surely fastest.")
    yield from lines
    if disturbed:
        where = [f"{n} ({format_list(g.key[1] for g in slips)})" for n, slips in disturbed]
        yield Finding(
            text=f"Not ranked, because a run was disturbed: {format_list(where)}.",
            remedy="Measure again on a quiet machine, with --no-cache.",
            caveats=caveats(*(group for _, slips in disturbed for group in slips)),
        )


def _winners(wins: dict[str, int], ranked: int) -> Finding:
    most = max(wins.values())
    best = format_list(name for name, times in wins.items() if times == most)
    several = list(wins.values()).count(most) > 1
    each = " each" if several else ""
    return Finding(
        question=WHICH,
        text=f"{best} {'train' if several else 'trains'} {most} of {ranked} networks "
        f"fastest{each}.",
        value=most,
        unit=f"of {ranked}: {best}",
    )


def _forward_share(forward: Matrix, training: Matrix) -> Iterator[Finding]:
    shares = []
    for group in training.groups:
        alone = forward.at(*group.key)
        a, b = (alone.step_ms if alone else None), group.step_ms
        if alone and a and b:
            shares.append((ratio(a, b), alone, group))
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
    yield Finding(text=f"A forward pass alone takes {span}", caveats=caveats(*low[1:], *high[1:]))


def _gaps(training: Matrix) -> Iterator[Finding]:
    for variant, why, networks in training.gaps():
        where = "" if variant in why else f"{variant}, {format_list(networks)}: "
        yield Finding(text=f"{where}{why}.")


EXPERIMENT = Experiment(
    name="frameworks",
    question="How fast does each framework run each network, forward and in training?",
    settings=Settings,
    works=(Forward, TrainSteps),
    varies={
        "framework": "frameworks",
        "network": "networks",
        "batch_per_device": "batch_sizes",
    },
    plan=plan,
    answer=answer,
    documents="000 (its matrix and bar charts), 002 figure 14",
)
