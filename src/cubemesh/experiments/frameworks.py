"""Which framework runs which network how fast on this device, forward and in training?

Document 000's matrix: seven networks, 64 samples a minibatch, the mean of 100 runs, forward and
forward+backward apart. Both are measured, as work of their own. The difference between them is not
the backward pass and is never called so: a training step also updates the weights, and its forward
pass keeps values that one alone does not. A mean is elapsed time over steps. What a framework
cannot do is shown in its place with the reason; one that is not installed with the command that
installs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments import reduction
from cubemesh.experiments.base import Context, Experiment, Plan, Scale
from cubemesh.experiments.beside import above_peak, time_rows, time_table
from cubemesh.experiments.conditions import titled
from cubemesh.experiments.groups import Group, doubts
from cubemesh.experiments.matrix import Key, Matrix, listed
from cubemesh.experiments.ratios import called, ratio, show_ratio
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.model import (
    Answer,
    Axis,
    Effort,
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

NETWORKS = (
    *("alexnet", "overfeat", "vgg16", "googlenet"),
    *("resnet-50", "resnet-101", "resnet-152"),
)
"""Document 000's seven; its "VGG" is taken for VGG-16."""
QUICK_NETWORKS = ("alexnet", "googlenet", "resnet-50")
BATCH = 64
RUNS = 100
REDUCED_RUNS = 10


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `frameworks` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to run; none given is document 000's seven, three with --quick."""
    frameworks: tuple[str, ...] = ()
    """Frameworks to run them with; none given is all that cubemesh knows."""
    batch_per_device: int | None = None
    """The minibatch; none given is the document's 64, less on a CPU."""
    runs: int | None = None
    """Steps to take the mean of, at least; none given is the document's 100, fewer on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """Forward passes, then training steps, of each network with each framework."""
    batch = settings.batch_per_device or reduction.batch(BATCH, context)
    networks = settings.networks or (QUICK_NETWORKS if _quick(context) else NETWORKS)
    effort = _effort(settings, context)
    yield [
        RunSpec(
            work=kind(
                network=network,
                batch_per_device=batch,
                image_size=reduction.image_size(network, context),
            ),
            program=ProgramSettings(framework=framework),
            effort=effort,
        )
        for network in dict.fromkeys(networks)
        for framework in dict.fromkeys(settings.frameworks or known())
        for kind in (Forward, TrainSteps)
    ]


def known() -> tuple[str, ...]:
    """Every framework that computes for real."""
    return tuple(name for name, line in FRAMEWORKS.items() if line.read_script is None)


def _quick(context: Context) -> bool:
    return context.scale is Scale.QUICK


def _effort(settings: Settings, context: Context) -> Effort:
    """As many windows as an interval needs, and no more than there are runs beyond that."""
    runs = settings.runs
    if runs is None:
        runs = REDUCED_RUNS if reduction.is_reduced(context) or _quick(context) else RUNS
    usual = context.effort
    windows = min(usual.windows, max(FEWEST_FOR_INTERVAL, runs))
    return replace(usual, steps=runs, windows=windows)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `frameworks`."""
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
        ),
    )


def _matrix(records: Sequence[RunRecord], kind: type[NetworkWork]) -> Matrix:
    return Matrix.of((r for r in records if isinstance(r.spec.work, kind)), _key)


def _key(record: RunRecord) -> Key:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network, record.spec.program.framework


def _step_ms(group: Group[Key]) -> Figure | None:
    return group.step_ms


def _left_out(training: Matrix) -> list[str]:
    return [n for n in NETWORKS if training.groups and n not in training.networks]


def _findings(forward: Matrix, training: Matrix) -> Iterator[Finding]:
    if any(len(training.row(n)) > 1 for n in training.networks):
        yield from _fastest(training)
    for name, line in FRAMEWORKS.items():
        if line.compiles:
            yield from _compiling(training, name, line.compiles)
    yield from _forward_share(forward, training)
    yield from _gaps(training)


def _fastest(training: Matrix) -> Iterator[Finding]:
    """Who is the fastest how often, then each network with its two fastest."""
    compared = [n for n in training.networks if len(training.row(n)) > 1]
    wins: dict[str, int] = {}
    lines = []
    for network in compared:
        (first, fast), (second, slow) = training.row(network)[:2]
        found = ratio(fast, slow)
        a, b = first.key[1], second.key[1]
        if called(found) > 0:
            wins[a] = wins.get(a, 0) + 1
            text = f"{network} trains fastest with {a}: {show_ratio(found)} the speed of {b}."
        else:
            text = f"{network}: {a} and {b} are level, {show_ratio(found)}."
        lines.append(Finding(text=text, doubts=doubts(first, second)))
    if wins:
        best = max(wins, key=lambda name: wins[name])
        yield Finding(
            question="Which framework trains fastest?",
            text=f"{best} trains {wins[best]} of {len(compared)} "
            f"{'network' if len(compared) == 1 else 'networks'} fastest.",
            value=wins[best],
            unit=f"of {len(compared)}: {best}",
            doubts=tuple(dict.fromkeys(code for line in lines for code in line.doubts)),
        )
    else:
        yield Finding(text="No framework trains any network surely fastest.")
    yield from lines


def _compiling(training: Matrix, compiled: str, plain: str) -> Iterator[Finding]:
    told: dict[int, list[str]] = {1: [], -1: [], 0: []}
    seen: list[Group[Key]] = []
    for network, found, groups in training.ratios(compiled, plain):
        told[called(found)].append(f"{network} {show_ratio(found)}")
        seen += groups
    parts = [
        f"{words} {listed(told[side])}"
        for side, words in ((1, "gains on"), (-1, "loses on"), (0, "is level on"))
        if told[side]
    ]
    if parts:
        text = f"{compiled} against {plain}: it {'; '.join(parts)}."
        yield Finding(text=text, doubts=doubts(*seen))


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
    yield Finding(text=f"A forward pass alone takes {span}", doubts=doubts(*low[1:], *high[1:]))


def _gaps(training: Matrix) -> Iterator[Finding]:
    for variant, why, networks in training.gaps():
        where = "" if variant in why else f"{variant}, {listed(networks)}: "
        yield Finding(text=f"{where}{why}.")


EXPERIMENT = Experiment(
    name="frameworks",
    question="How fast does each framework run each network, forward and in training?",
    settings=Settings,
    works=(Forward, TrainSteps),
    varies={"framework": "frameworks", "network": "networks", "steps": "runs"},
    plan=plan,
    answer=answer,
    documents="000 (its matrix and bar charts), 002 figure 14",
)
