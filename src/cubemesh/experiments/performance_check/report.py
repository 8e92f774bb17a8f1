"""Findings, tables and chart of `performance-check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import (
    bounds,
    format_ratio,
    ratio,
    significance,
    verdicts,
)
from cubemesh.experiments.analysis.utilization_columns import share_cell
from cubemesh.experiments.performance_check.analysis import (
    PROFILE,
    WORKLOADS_CPU,
    WORKLOADS_GPU,
    Loss,
    PerformanceCheck,
    Workload,
    other_throughput,
    title_of,
)
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.networks.own_input import is_imagenet
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    Point,
    PublishedFigure,
    Table,
)
from cubemesh.schema.answer import INTERVAL_MEANING
from cubemesh.units import (
    format_interval,
    format_list,
    format_number,
    format_quantity,
    format_seconds,
)

EXPLAINED = {
    "pytorch-captured": ("cubemesh's training step with fused kernels", " in one CUDA graph"),
    "pytorch-compiled": ("framework=pytorch-compiled", ""),
}
"""Framework → what it is, and what else on a GPU; said where it is first named."""
OWN_CODE = "pytorch-compiled"
"""The framework that code outside of cubemesh can use in one line."""
DAY_S = 86400.0
LARGEST_LOSS = "What loses most throughput?"
LEFT = "What is left to gain?"
IMAGENET_IMAGES, IMAGENET_EPOCHS = 1_281_167, 90
MOST_GAINS = 2


def findings(check: PerformanceCheck) -> Iterator[Finding]:
    """In the order of a summary: verdict, throughputs, published results, losses, what is left to
    gain, duration."""
    explained: set[str] = set()
    for workload in check.ranked[:1]:
        yield from _verdict(check, workload, explained)
    for workload in check.ranked:
        yield _throughput(workload, explained)
    for workload in check.ranked:
        yield from _published(workload)
    yield from _losses(check)
    yield from _left(check)
    for workload in check.ranked:
        yield from _training_time(workload)


def _throughput(workload: Workload, explained: set[str]) -> Finding:
    """The throughput of a workload; programs in `explained` need no explanation."""
    figure, network = workload.throughput, workload.network
    if figure is None:
        return Finding(code="failed-run", text=f"{network}: {workload.group.why}.")
    program = _program(workload.fastest, workload, explained)
    relative = [
        f"{format_ratio(f)} the speed of {_program(n, workload, explained)}"
        for n, f in _by_name(workload)
    ]
    if workload.sequence_length:
        relative.insert(0, _rate(figure.scaled(workload.sequence_length, ""), "tokens/s"))
    relative += _matmul_use(workload, explained)
    tokens = workload.sequence_length
    conditions = (
        f"batch size {workload.batch}",
        f"sequences of {tokens:,} tokens" if tokens else "",
        workload.spec.program.precision,
        workload.threads,
        program.replace(" (", ", ").removesuffix(")"),
    )
    return Finding.of(
        code="throughput",
        question=f"How fast does this machine train {network}?",
        text=f"{network} trains at {_rate(figure, workload.unit)} on {_input(workload)} "
        f"({', '.join(filter(None, conditions))})"
        f"{': ' + format_list(relative) if relative else ''}.",
        figure=figure,
        unit=workload.unit,
        caveats=workload.caveats,
    )


def _program(framework: str, workload: Workload, explained: set[str]) -> str:
    """The name of a program; with what it is where it is named for the first time."""
    name = title_of(framework)
    if framework not in EXPLAINED or framework in explained:
        return name
    explained.add(framework)
    words, on_gpu = EXPLAINED[framework]
    return f"{name} ({words}{'' if workload.on_cpu else on_gpu})"


def _input(workload: Workload) -> str:
    return "synthetic input" if workload.synthetic else "image files"


def _matmul_use(workload: Workload, explained: set[str]) -> Iterator[str]:
    """The share of the fastest matrix product, where it is known."""
    use, rates = workload.use_percent, workload.matmul_rates
    if use is None:
        return
    details = [_of(*rates, "FLOP/s")] if rates else []
    if workload.rated is not None:
        details.append(f"the published result: {use / workload.rated.value:.0f} %")
    why = f" ({'; '.join(details)})" if details else ""
    measured = "" if "matrix product" in explained else " measured on this device"
    explained.add("matrix product")
    yield f"{use:.0f} % of the fastest matrix product{measured}{why}"


def _of(part: float, whole: float, unit: str) -> str:
    """`219 of 687 TFLOP/s`."""
    (first, small), (second, large) = (
        format_quantity(value, unit).split() for value in (part, whole)
    )
    return f"{first}{'' if small == large else f' {small}'} of {second} {large}"


def _by_name(workload: Workload) -> list[tuple[str, Figure]]:
    """The speed-ups in the order of the frameworks."""
    return sorted(workload.speedups.items(), key=lambda one: _order(one[0]))


def _order(framework: str) -> int:
    names = list(FRAMEWORKS)
    return names.index(framework) if framework in FRAMEWORKS else len(names)


def _rate(figure: Figure, unit: str) -> str:
    return format_interval(figure.value, figure.low, figure.high, unit)


def _verdict(check: PerformanceCheck, workload: Workload, explained: set[str]) -> Iterator[Finding]:
    """From PyTorch eager to the fastest program, what is left to gain, how good that is, and the
    command that trains at this speed."""
    figure, speedups = workload.throughput, workload.speedups
    if figure is None or not speedups:
        return
    program = _program(workload.fastest, workload, explained)
    commands = [loss.command for loss in workload.losses() if loss.included and loss.significant]
    rest = _rest(check)
    yield Finding(
        code="verdict",
        text=f"{workload.network}: {_from_eager(workload, figure, program)}"
        f"{'; ' + rest if rest else ''}.{_rated(workload)}{_own_code(check)}",
        remedy=f"First, train {workload.network} at this speed: {commands[0]}" if commands else "",
        caveats=workload.caveats,
    )


def _from_eager(workload: Workload, figure: Figure, program: str) -> str:
    """`PyTorch eager 4,640 → 9,000 images/s (1.94 ± 0.01×) with pytorch-captured`."""
    stock = "pytorch" if "pytorch" in workload.speedups else min(workload.speedups, key=_order)
    gain, name = workload.speedups[stock], title_of(stock)
    if workload.fastest == "pytorch":
        return f"no program that was tried is faster than {program}"
    (verdict,) = verdicts([gain])
    if verdict.sign <= 0:
        return f"{program} is not significantly different from {name} ({verdict.unseen})"
    slower = figure.scaled(1 / gain.value, "")  # agrees with the ratio, on a noisy machine too
    before, after = (_rate(f, "").partition(" ")[0] for f in (slower, figure))
    return (
        f"{name} {before} → {after} {workload.unit} ({format_ratio(gain)}) with {program}, "
        "already in this figure"
    )


def _rest(check: PerformanceCheck) -> str:
    """What else is faster, in a few words; empty where nothing else was tried."""
    others = [loss for loss in check.tried if not loss.included]
    left = max(
        (loss for loss in others if loss.significant), key=lambda o: o.gain.value, default=None
    )
    if left is not None:
        return f"{left.remedy} would make {left.network} {format_ratio(left.gain)} as fast"
    return "nothing else that was tried is faster" if others else ""


def _rated(workload: Workload) -> str:
    """How the throughput compares with published results of this class of device."""
    times = workload.rated
    if times is None or workload.published is None:
        return " No published result is of this class of device."
    (verdict,) = verdicts([times])
    away = f"{abs(100 * (times.value - 1)):.0f} %"
    words = {1: f"{away} above", 0: "Not significantly different from", -1: f"{away} below"}
    unseen = "" if verdict.sign else f" ({verdict.unseen})"
    return f" {words[verdict.sign]} the fastest published result{unseen}, under other conditions."


def _published(workload: Workload) -> Iterator[Finding]:
    """The fastest published result with its conditions and those here; a card only where it is of
    this class of device."""
    rate = workload.throughput
    if workload.published is None or rate is None:
        return
    figure, times = workload.published
    if workload.rated is None:
        yield Finding.of(
            code="published-other-device",
            text=f"{workload.network}: {format_ratio(times)} the fastest published result on a "
            f"CPU, {_published_rate(workload)} ({_published_conditions(figure)}). "
            f"{figure.device.removeprefix('CPU: ')}, {_published_by(figure)}. It is of another "
            "class of processor and does not rate this machine.",
            figure=times,
            unit="×",
            caveats=workload.caveats,
        )
        return
    here = ", ".join(
        (
            workload.threads or "1 GPU",
            workload.spec.program.precision,
            f"batch size {workload.batch}",
            _input(workload),
        )
    )
    yield Finding.of(
        code="published-ratio",
        question=f"What do others reach with {workload.network}?",
        text=f"{workload.network}: {format_ratio(times)} the fastest published result on this "
        f"device, {_published_rate(workload)} ({_published_conditions(figure)}; here {here}). "
        f"{_published_by(figure)}.",
        figure=times,
        unit="×",
        caveats=workload.caveats,
    )


def _published_rate(workload: Workload) -> str:
    """`7,950 images/s`."""
    assert workload.published is not None
    assert workload.throughput is not None
    figure, times = workload.published
    passes = "" if figure.metric == "throughput" else " for forward and backward passes"
    return f"{format_number(workload.throughput.value / times.value)} {workload.unit}{passes}"


def _published_by(figure: PublishedFigure) -> str:
    """Framework and source of a published result."""
    return f"{figure.framework.replace(',', ' ').split(' ')[0]}; {figure.source.partition(' (')[0]}"


def _published_conditions(figure: PublishedFigure) -> str:
    """Devices, precision, batch size and input of a published result."""
    parts = (
        f"per GPU of {figure.devices}" if (figure.devices or 0) > 1 else "",
        figure.precision,
        f"batch size {figure.batch_per_device}" if figure.batch_per_device else "",
        _published_input(figure),
    )
    return ", ".join(filter(None, parts))


def _published_input(figure: PublishedFigure) -> str:
    """`real input`; empty where the source does not say it."""
    words = figure.note.lower().split()
    for kind in ("real", "synthetic"):
        if figure.input == kind or any(word.startswith(kind) for word in words):
            return f"{kind} input"
    return ""


def _losses(check: PerformanceCheck) -> Iterator[Finding]:
    """The largest loss, and others that the figures of the machine do not have."""
    if check.tried and not check.losses:
        yield Finding(
            code="no-loss",
            question=LARGEST_LOSS,
            text="No remedy that was tried makes training significantly faster.",
        )
    for place, losses in enumerate(check.losses):
        if place and not losses[0].included:
            continue  # is left to gain
        share = format_list(
            f"{100 * o.share:.0f} % of {'that' if o is not losses[0] else 'the throughput'} of "
            f"{o.network}"
            for o in losses
        )
        gains = format_list(
            f"{remedy} makes {_gains(o for o in losses if o.remedy == remedy)}"
            for remedy in dict.fromkeys(o.remedy for o in losses)
        )
        included = ", already in the throughput above" if losses[0].included else ""
        cause = losses[0].cause
        yield Finding.of(
            code="throughput-loss" if place else "largest-loss",
            question=None if place else LARGEST_LOSS,
            text=f"{losses[0].baseline} loses {share}"
            f"{f' to {cause}' if cause else '; the cause was not measured'}. "
            f"{gains} as fast{included}.{_profile(check, losses)}",
            figure=losses[0].gain,
            unit="×",
            remedy=_remedy(losses[0]),
            caveats=_caveats(losses),
        )


def _own_code(check: PerformanceCheck) -> str:
    """What code outside of cubemesh gains in one line, where the fastest program is cubemesh's."""
    gains = []
    for workload in check.ranked:
        eager, other = (workload.speedups.get(name) for name in ("pytorch", OWN_CODE))
        if eager is None or other is None or workload.fastest not in EXPLAINED:
            continue
        gain = ratio(eager, other)
        if significance(gain) > 0:
            gains.append(f"{workload.network} {format_ratio(gain)}")
    if not gains:
        return ""
    return f" In your own code, {title_of(OWN_CODE)} makes {format_list(gains)} as fast."


def _gains(losses: Iterable[Loss]) -> str:
    return format_list(f"{loss.network} {format_ratio(loss.gain)}" for loss in losses)


def _remedy(loss: Loss) -> str:
    return f"To train {loss.network} with {loss.remedy}: {loss.command}"


def _caveats(losses: Iterable[Loss]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(code for loss in losses for code in loss.caveats))


def _profile(check: PerformanceCheck, losses: Sequence[Loss]) -> str:
    """Largest overhead of an eager step of these networks, where it was attributed."""
    networks = {loss.network for loss in losses if loss.included}
    for record in (r for w in check.workloads if w.network in networks for r in w.role(PROFILE)):
        overhead = largest_bottleneck(record)
        if overhead is not None and overhead.name:
            name = overhead.name.replace("_", " ")
            return (
                f" The largest overhead of an eager step is {name} ({100 * overhead.share:.0f} %)."
            )
    return ""


def _left(check: PerformanceCheck) -> Iterator[Finding]:
    """Gains beyond the figures of the machine."""
    left = [loss for losses in check.losses[1:] for loss in losses if not loss.included]
    for loss in left[:MOST_GAINS]:
        yield Finding.of(
            code="further-gain",
            question=LEFT,
            text=f"With {loss.remedy}, {loss.baseline} trains {loss.network} "
            f"{format_ratio(loss.gain)} as fast, which the figure of this machine does not "
            "include.",
            figure=loss.gain,
            unit="×",
            remedy=_remedy(loss),
            caveats=loss.caveats,
        )
    others = [loss for loss in check.tried if not loss.included]
    if left or any(loss.significant for loss in others):
        return
    tried = (f"{o.remedy} ({o.network}, {format_ratio(o.gain)})" for o in others)
    yield Finding(
        code="no-further-gain",
        question=LEFT,
        text=f"Nothing else that was tried is significantly faster: {format_list(tried)}."
        if others
        else f"The time did not allow a trial of {format_list(check.untried)}.",
        remedy="" if others else f"To try {format_list(check.untried)}: {_longer(check)}",
        caveats=_caveats(others),
    )


def _longer(check: PerformanceCheck) -> str:
    """The command that continues with more time."""
    networks = [workload.network for workload in check.workloads]
    gpu = not all(workload.on_cpu for workload in check.workloads)
    return f"{quick_command(networks, gpu=gpu)} --set minutes=10"


def quick_command(networks: Sequence[str], *, gpu: bool) -> str:
    """The command that measures these networks on a machine with or without a GPU."""
    own, default = dict.fromkeys(networks), WORKLOADS_GPU if gpu else WORKLOADS_CPU
    named = "" if own.keys() == default.keys() else f" --set networks={','.join(own)}"
    return f"cubemesh run quick{named}"


def _training_time(workload: Workload) -> Iterator[Finding]:
    figure = workload.throughput
    if figure is None or not is_imagenet(workload.spec.work):
        return
    low, high = bounds(figure)
    images = IMAGENET_EPOCHS * IMAGENET_IMAGES
    yield Finding(
        code="training-time",
        question=f"How long does {workload.network} train on ImageNet?",
        text=f"{IMAGENET_EPOCHS} epochs of ImageNet with {workload.network} take "
        f"{_duration(images / figure.value, images / high, images / low)}, if the input keeps up.",
        value=images / figure.value,
        unit="s",
        low=images / high,
        high=images / low,
        caveats=workload.caveats,
    )


def _duration(seconds: float, low: float, high: float) -> str:
    """`3 h 33 min`; of days to the place of the interval, `73 ± 17 days`."""
    if seconds < DAY_S:
        return format_seconds(seconds)
    return format_interval(seconds / DAY_S, low / DAY_S, high / DAY_S, "days")


def tables(check: PerformanceCheck) -> Iterator[Table]:
    """Programs of each network; trials; published results."""
    for workload in check.ranked:
        yield Table(
            title=f"{workload.network} at batch size {workload.batch} in "
            f"{workload.spec.program.precision}: programs interleaved in one process",
            columns=(
                Column(name="program"),
                Column(name="setting"),
                Column(name="throughput", unit=workload.unit),
                Column(name="fastest / this", unit="×"),
                Column(name="matmul use", unit="%", digits=2),
            )[: 5 if _use(workload) else 4],
            rows=tuple(_program_rows(workload)),
        )
    if check.tried:
        yield Table(
            title="Remedies that were tried",
            columns=(
                Column(name="network"),
                Column(name="program"),
                Column(name="loses throughput to"),
                Column(name="remedy"),
                Column(name="gain", unit="×"),
                Column(name="in the figure of this machine"),
            ),
            rows=tuple(map(_trial_row, check.tried)),
        )
    for workload in check.ranked:
        yield from _published_table(workload)


def _program_rows(workload: Workload) -> Iterator[tuple[Cell, ...]]:
    group = workload.group
    own_figure = group.throughput_with(workload.prior)
    runs = {workload.known: (group, own_figure, _use(workload))}
    for name, records in workload.compared.items():
        runs[name] = Group(name, records), other_throughput(records, workload.prior), None
    for name, (own, figure, use) in runs.items():
        speedup = workload.speedups.get(name)
        if name == workload.fastest:
            relative = Cell(text="fastest")
        elif speedup is None and own.ok:
            relative = Cell(text="not compared")
        else:
            relative = own.cell(speedup)
        yield (
            Cell(text=title_of(name)),
            Cell(text=f"framework={name}"),
            own.cell(figure),
            relative,
            Cell(text="–") if use is None else share_cell(use, own.run_id),
        )[: 5 if _use(workload) else 4]


def _use(workload: Workload) -> float | None:
    """Percent of the fastest matrix product that the fastest known program uses."""
    return workload.group.median_of("ceiling_mfu_percent")


def _trial_row(loss: Loss) -> tuple[Cell, ...]:
    return (
        Cell(text=loss.network),
        Cell(text=loss.baseline),
        Cell(text=loss.cause or "not measured"),
        Cell(text=loss.remedy),
        Cell.of(loss.gain),
        Cell(text="yes" if loss.included else "no"),
    )


def _published_table(workload: Workload) -> Iterator[Table]:
    if workload.published is None or (measured := workload.throughput) is None:
        return
    figure, times = workload.published
    yield Table(
        title=f"Fastest published result of {workload.network}",
        columns=(
            Column(name="device"),
            Column(name="framework"),
            Column(name="precision"),
            Column(name="batch size"),
            Column(name="throughput", unit=workload.unit),
            Column(name="here / published", unit="×"),
            Column(name="source"),
        ),
        rows=(
            (
                Cell(text=figure.device),
                Cell(text=figure.framework.split(",")[0]),
                Cell(text=figure.precision),
                Cell(text=str(figure.batch_per_device or "not stated")),
                Cell(value=measured.value / times.value),
                Cell.of(times),
                Cell(text=figure.source),
            ),
        ),
    )


def charts(check: PerformanceCheck) -> Iterator[Chart]:
    """Throughput of each program relative to PyTorch eager."""
    lines: dict[str, list[Point]] = {}
    compared: list[Workload] = []
    for workload in check.ranked:
        eager = workload.speedups.get("pytorch")
        if eager is None:
            continue
        compared.append(workload)
        relative = {
            name: ratio(eager, figure) if name != "pytorch" else Figure(value=1.0, unit="×")
            for name, figure in workload.speedups.items()
        }
        for name, figure in {**relative, workload.fastest: eager}.items():
            lines.setdefault(name, []).append(
                Point(
                    x=workload.network,
                    y=figure.value,
                    low=figure.low,
                    high=figure.high,
                    run_id=workload.record_of(name).run_id,
                )
            )
    for name, points in lines.items():
        drawn = {point.x for point in points}
        points += [_missing(w, name) for w in compared if w.network not in drawn]
    if lines:
        yield Chart(
            name="performance-check",
            title="Training throughput relative to PyTorch eager",
            kind="bar",
            x=Axis(name="network", scale="category"),
            y=Axis(name="throughput", unit="× eager", from_zero=True),
            lines=tuple(
                Line(name=title_of(name), points=tuple(lines[name]))
                for name in sorted(lines, key=_order)
            ),
        )


def _missing(workload: Workload, framework: str) -> Point:
    """A program without a figure: its run failed, or there was none."""
    for record in workload.records:
        other = record.spec.other
        if other is not None and other.program.framework == framework and not record.ok:
            why = Group(workload.network, (record,)).why
            return Point(x=workload.network, reason=f"failed: {why}", run_id=record.run_id)
    return Point(x=workload.network, reason="not run")


def notes(check: PerformanceCheck) -> Iterator[str]:
    """What the intervals are, and conditions of the figures."""
    covered: dict[str, list[str]] = {}
    for workload in check.ranked:
        if workload.throughput is not None:
            runs = workload.processes
            name = f"{workload.network} ({runs} process{'' if runs == 1 else 'es'})"
            covered.setdefault(_coverage(workload), []).append(name)
    intervals = [f"Throughput of {format_list(own)}: {what}." for what, own in covered.items()]
    if intervals:
        yield " ".join([INTERVAL_MEANING, *intervals, RATIOS_ARE_TIGHTER])
    yield from CONDITIONS
    yield from dict.fromkeys(
        f"Spread between processes: that {workload.prior.source}, and of the runs here."
        for workload in check.ranked
        if workload.prior is not None
    )


def _coverage(workload: Workload) -> str:
    """What the interval of a throughput covers."""
    if workload.prior is not None:
        others = "the other network's" if workload.prior is workload.lent else "earlier ones"
        return f"how far it differs between processes, from {others} as well"
    if workload.processes > 1:
        return (
            "how far it differs between processes; more of them narrow it "
            f"(--set repeats={workload.more_repeats})"
        )
    return (
        "how far it differs between windows of time in that process; another process may differ by "
        f"more (--set repeats={workload.more_repeats})"
    )


RATIOS_ARE_TIGHTER = (
    "Ratios of programs are tighter than throughputs: both run interleaved in one process, so that "
    "what slows the machine slows both."
)


CONDITIONS = (
    "All programs of a network have the same precision, image layout and batch size, one batch "
    "that is resident on the device, and run interleaved in one process. The throughput of the "
    "fastest known program pools all its runs.",
    "‘Matmul use’ is the counted matrix operations per second over the fastest matrix product "
    "measured on this device.",
)
"""Conditions of the figures."""
