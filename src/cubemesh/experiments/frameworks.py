"""Framework benchmark: time of each framework and network, forward and in training.

The matrix of Addfor 2016 [000]: seven networks, batch size 64, the mean of 100 runs, forward and
forward+backward separately. `passes` are what is measured (core/passes.py): by default the forward
pass in training mode and the training step; `inference` and `forward-backward` are those of the
paper. The difference of the default two is not the backward pass: a training step also updates the
weights, and its forward pass saves activations. A mean is elapsed time over steps. Each framework
has images in its usual layout. Unsupported combinations are shown with their reason, missing
frameworks with the command that installs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
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
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, verdicts
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.core.passes import PASSES, VARIES, WORKS, Pass, of_pass, work_of
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.networks import rate_unit
from cubemesh.schema import (
    Answer,
    Axis,
    Budget,
    Figure,
    Finding,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
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
MISSING_PASSES = (
    "passes= has no value: name some of inference, forward, forward-backward and training, or "
    "leave it out."
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `frameworks` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to run; default: the paper's seven, three with --quick."""
    frameworks: tuple[str, ...] = ()
    """Frameworks to run them with; default: all."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: the paper's 64, less on a CPU."""
    passes: tuple[Pass, ...] = ("forward", "training")
    """Passes to time: inference (forward in evaluation mode, without the loss), forward (in
    training mode, with the loss), forward-backward (without an update), training."""
    steps: int | None = None
    """Minimum number of steps to average; default: the paper's 100, fewer on a CPU."""

    def __post_init__(self) -> None:
        if not self.passes:
            raise UsageError(MISSING_PASSES)


def plan(settings: Settings, context: Context) -> Plan:
    """The passes of each network with each framework."""
    batches = settings.batch_sizes or (reduction.batch(BATCH, context),)
    quick = context.scale is Scale.QUICK
    networks = settings.networks or (QUICK_NETWORKS if quick else NETWORKS)
    budget = _budget(settings, context)
    yield [
        RunSpec(
            work=work_of(
                name,
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
        for name in dict.fromkeys(settings.passes)
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
    matrices = {name: _matrix(records, name) for name in PASSES}
    matrices = {name: matrix for name, matrix in matrices.items() if matrix.groups}
    ranked = matrices[_ranked(matrices)] if matrices else Matrix(())
    published = time_rows(_published(matrices).groups)
    expected = NETWORKS if ranked.groups and not settings.networks else ()
    at = f", {batch_size(records[0])[0]}" if records else ""
    y = Axis(name="step", unit="ms", from_zero=True)
    return answer_of(
        EXPERIMENT,
        titled(f"Frameworks and networks{at}", records),
        records,
        findings=_findings(matrices),
        tables=(
            *(m.table(PASSES[name].title, "ms", _step_ms) for name, m in matrices.items()),
            *nearest_table(published, FORWARD_BACKWARD_TIME),
        ),
        charts=tuple(
            chart
            for name, m in matrices.items()
            for chart in m.chart(f"frameworks-{name}", f"{PASSES[name].title}: time", y, _step_ms)
        ),
        warnings=(
            *reduction.reductions(
                records,
                batch_per_device=BATCH,
                steps=STEPS,
                missing=[n for n in expected if n not in ranked.networks],
            ),
            *above_peak(published),
        ),
        notes=(
            "Mean time, elapsed time over steps; ± is the 95 % interval over the windows of "
            "one process. Frameworks run in separate processes, which can differ by more "
            "(repeats=3 shows it): differences below 3 % are not significant.",
            *_definitions(matrices),
            *_layouts(records),
        ),
    )


def _ranked(matrices: Mapping[Pass, Matrix]) -> Pass:
    """The pass by which frameworks are ranked: the one with most parts."""
    return list(matrices)[-1]


def _published(matrices: Mapping[Pass, Matrix]) -> Matrix:
    """The matrix that published times of forward+backward are nearest to."""
    for name in ("forward-backward", "training"):
        if name in matrices:
            return matrices[name]
    return Matrix(())


def _definitions(matrices: Mapping[Pass, Matrix]) -> Iterator[str]:
    """What the passes include."""
    if "inference" in matrices:
        yield (
            "The inference pass is in evaluation mode: batch normalization by running statistics, "
            "no dropout, no loss, and in bf16 and fp16 weights of 16 bits. Batches are queued, and "
            "their scores stay on the device."
        )
    if "forward-backward" in matrices:
        yield (
            "Forward + backward is in training mode, with the loss; every gradient is computed, "
            "and no weight is updated."
        )
    if {"forward", "training"} <= set(matrices):
        yield (
            "Forward passes (in training mode, with the loss) and training steps are measured "
            "separately. Their difference is not the backward pass: a training step also updates "
            "the weights and saves activations."
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


def _matrix(records: Sequence[RunRecord], name: Pass) -> Matrix:
    return Matrix.of((r for r in records if of_pass(r, name)), _key)


def _key(record: RunRecord) -> CellKey:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network, record.spec.program.framework


def _step_ms(group: Group[CellKey]) -> Figure | None:
    return group.step_ms


def _findings(matrices: Mapping[Pass, Matrix]) -> Iterator[Finding]:
    if not matrices:
        return
    name = _ranked(matrices)
    ranked = matrices[name]
    if any(len(ranked.row(n)) > 1 for n in ranked.networks):
        yield from _fastest(ranked, name)
    elif name == "training":
        yield from _throughputs(ranked)
    for framework, line in FRAMEWORKS.items():
        if line.compiles and (found := ranked.gains(framework, line.compiles)):
            yield found
    yield from _shares(matrices, name)
    seen: set[str] = set()
    for own in reversed(list(matrices.values())):
        for variant, why, networks in own.gaps():
            where = "" if variant in why else f"{variant}, {format_list(networks)}: "
            text = f"{where}{why}."
            if text not in seen:
                seen.add(text)
                yield Finding(code="failed-run", text=text)


def _throughputs(training: Matrix) -> Iterator[Finding]:
    """How fast each network trains, where no other framework ran it."""
    for group in training.groups:
        if (figure := group.throughput) is None:
            continue
        network, framework = group.key
        spec, unit = group.records[0].spec, rate_unit(network)
        yield Finding.of(
            code="throughput",
            question="How fast does this machine train?",
            text=f"{network} trains at {plus_minus(figure)} {unit} ({framework}, "
            f"{spec.program.precision}, batch size {spec.batch_per_device}).",
            figure=figure,
            unit=unit,
            caveats=group.caveats,
        )


def _fastest(training: Matrix, name: Pass) -> Iterator[Finding]:
    """Number of networks on which each framework is fastest, then the two fastest on each network,
    by the times of the pass `name`. Networks with a noisy run are not ranked."""
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
            does = "trains" if name == "training" else f"makes a {PASSES[name].short}"
            text = f"{network} {does} fastest with {a}: {format_ratio(found)} the speed of {b}."
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
        lines = [replace(lines[0], question=_question(name))]
    elif wins:
        yield _most_often_fastest(wins, ranked, name)
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


def _question(name: Pass) -> str:
    if name == "training":
        return QUESTION
    return f"Which framework is fastest in the {PASSES[name].short}?"


def _most_often_fastest(wins: dict[str, int], ranked: int, name: Pass) -> Finding:
    most = max(wins.values())
    best = format_list(name for name, times in wins.items() if times == most)
    several = list(wins.values()).count(most) > 1
    each = " each" if several else ""
    return Finding(
        code="fastest-frameworks",
        question=_question(name),
        text=f"{best} {'are' if several else 'is'} fastest on {most} of {ranked} networks{each}.",
        value=most,
        unit=f"of {ranked}: {best}",
    )


def _shares(matrices: Mapping[Pass, Matrix], ranked: Pass) -> Iterator[Finding]:
    """The time of each pass relative to that of the ranked one."""
    for name, matrix in matrices.items():
        if name != ranked:
            yield from _share(name, matrix, ranked, matrices[ranked])


def _share(name: Pass, part: Matrix, ranked: Pass, whole: Matrix) -> Iterator[Finding]:
    shares = []
    for group in whole.groups:
        own = part.at(*group.key)
        a, b = (own.step_ms if own else None), group.step_ms
        if own and a and b:
            shares.append((ratio(a, b), own, group))
    if not shares:
        return
    low, high = (pick(shares, key=lambda s: s[0].value) for pick in (min, max))
    percents = [f"{100 * s.value:.0f} %" for s, *_ in (low, high)]
    of = f"of the time of a {PASSES[ranked].short}"
    span = f"{percents[0]} {of}."
    if percents[0] != percents[1]:
        ends = [
            f"{percent} ({', '.join(end[2].key)})"
            for percent, end in zip(percents, (low, high), strict=True)
        ]
        span = f"from {ends[0]} to {ends[1]} {of}."
    article = "An" if name == "inference" else "A"
    yield Finding(
        code=f"{name}-share",
        text=f"{article} {PASSES[name].short} takes {span}",
        value=100 * high[0].value,
        unit=f"% of a {'step' if ranked == 'training' else PASSES[ranked].short}",
        caveats=caveats(*low[1:], *high[1:]),
    )


EXPERIMENT = Experiment(
    name="frameworks",
    question="How fast does each framework run each network, forward and in training?",
    settings=Settings,
    works=WORKS,
    varies={"framework": "frameworks", "network": "networks", "batch_per_device": "batch_sizes"}
    | VARIES,
    plan=plan,
    answer=answer,
    papers="[000] (its matrix and bar charts), [002], figure 14",
)
