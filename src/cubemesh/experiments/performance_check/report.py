"""Findings, tables and chart of `performance-check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import bounds, format_ratio, ratio, verdicts
from cubemesh.experiments.analysis.utilization_columns import share_cell
from cubemesh.experiments.performance_check.analysis import (
    PROFILE,
    Loss,
    PerformanceCheck,
    Workload,
    other_throughput,
    title_of,
)
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.networks.own_input import is_imagenet
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Finding, Line, Point, Table
from cubemesh.schema.answer import INTERVAL_MEANING
from cubemesh.units import (
    format_interval,
    format_list,
    format_number,
    format_quantity,
    format_seconds,
)

EXPLAINED = {"pytorch-captured": ("PyTorch with fused kernels", " and CUDA graphs")}
"""Framework → what it is, and what else on a GPU; said where it is first named."""
LARGEST_LOSS = "What loses most throughput?"
LEFT = "What is left to gain?"
IMAGENET_IMAGES, IMAGENET_EPOCHS = 1_281_167, 90
MOST_GAINS = 2


def findings(check: PerformanceCheck) -> Iterator[Finding]:
    """In the order of a summary: throughputs, published results, losses, what is left to gain,
    duration."""
    explained: set[str] = set()
    for place, workload in enumerate(check.ranked):
        yield _throughput(workload, explained)
        if place == 0:
            yield from _verdict(workload)
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
    relative = [f"{format_ratio(f)} the speed of {title_of(n)}" for n, f in _by_name(workload)]
    if workload.sequence_length:
        relative.insert(0, _rate(figure.scaled(workload.sequence_length, ""), "tokens/s"))
    relative += _matmul_use(workload)
    program, note = title_of(workload.fastest), ""
    if workload.fastest in EXPLAINED and workload.fastest not in explained:
        explained.add(workload.fastest)
        words, on_gpu = EXPLAINED[workload.fastest]
        note = f", which is {words}{'' if workload.on_cpu else on_gpu}"
    precision = workload.spec.program.precision
    tokens = workload.sequence_length
    length = f"sequences of {tokens:,} tokens, " if tokens else ""
    return Finding.of(
        code="throughput",
        question=f"How fast does this machine train {network}?",
        text=f"{network} trains at {_rate(figure, workload.unit)} (batch size {workload.batch}, "
        f"{length}{precision}, {program}{note}){': ' + format_list(relative) if relative else ''}.",
        figure=figure,
        unit=workload.unit,
        caveats=workload.caveats,
    )


def _matmul_use(workload: Workload) -> Iterator[str]:
    """The share of the fastest matrix product, where it is known."""
    use, rates = workload.use_percent, workload.matmul_rates
    if use is None:
        return
    details = [_of(*rates, "FLOP/s")] if rates else []
    if workload.rated is not None:
        details.append(f"the published result: {use / workload.rated.value:.0f} %")
    why = f" ({'; '.join(details)})" if details else ""
    yield f"{use:.0f} % of the fastest matrix product of this device{why}"


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


def _verdict(workload: Workload) -> Iterator[Finding]:
    """How good a throughput is, and the command that trains at it."""
    gains = [(f"the speed of {title_of(name)}", gain) for name, gain in _by_name(workload)]
    judged = verdicts([gain for _, gain in gains])
    compared = [
        f"{format_quantity(gain.value, '×')} {what}"
        if verdict.sign
        else f"not significantly different from {what} ({verdict.unseen})"
        for (what, gain), verdict in zip(gains, judged, strict=True)
    ]
    if (times := workload.rated) is not None:
        (verdict,) = verdicts([times])
        away = f"{abs(100 * (times.value - 1)):.0f} %"
        words = {1: f"{away} above", 0: "not significantly different from", -1: f"{away} below"}
        unseen = "" if verdict.sign else f" ({verdict.unseen})"
        compared.insert(
            0, f"{words[verdict.sign]} the fastest published result on this device{unseen}"
        )
    unrated = "" if workload.rated else " No published result is of this class of device."
    commands = [loss.command for loss in workload.losses() if loss.included and loss.significant]
    if compared:
        yield Finding(
            code="verdict",
            text=f"That is {format_list(compared)}.{unrated}",
            remedy=f"First, train {workload.network} at this speed: {commands[0]}"
            if commands
            else "",
            caveats=workload.caveats,
        )


def _published(workload: Workload) -> Iterator[Finding]:
    rate = workload.throughput
    if workload.published is None or rate is None:
        return
    figure, times = workload.published
    passes = "" if figure.metric == "throughput" else " for forward and backward passes"
    devices = "processors" if workload.on_cpu else "GPUs"
    passes += f" on each of {figure.devices} {devices}" if (figure.devices or 0) > 1 else ""
    batch = f", batch size {figure.batch_per_device}" if figure.batch_per_device else ""
    device = figure.device.removeprefix("CPU: ")
    here = f"{workload.threads} threads of {workload.device or 'this processor'}"
    other = (
        f" It is of another class of processor and does not rate these {here}."
        if workload.rated is None
        else ""
    )
    yield Finding.of(
        code="published-other-device" if workload.rated is None else "published-ratio",
        question=f"What do others reach with {workload.network}?",
        text=f"{workload.network}: {format_ratio(times)} the fastest published result on "
        f"{'a CPU' if workload.on_cpu else 'this device'}, "
        f"{format_number(rate.value / times.value)} {workload.unit}{passes} "
        f"({device}, {figure.framework.split(',')[0]}, {figure.precision}{batch}; "
        f"{figure.source.partition(' (')[0]}).{other}",
        figure=times,
        unit="×",
        caveats=workload.caveats,
    )


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
            f"{remedy} makes {_gains(o for o in losses if o.remedy == remedy)} as fast"
            for remedy in dict.fromkeys(o.remedy for o in losses)
        )
        figures = "figure" if len(losses) == 1 else "figures"
        verb = "includes" if len(losses) == 1 else "include"
        included = f", which the {figures} of this machine {verb}" if losses[0].included else ""
        yield Finding.of(
            code="throughput-loss" if place else "largest-loss",
            question=None if place else LARGEST_LOSS,
            text=f"{losses[0].baseline} loses {share} to {losses[0].cause}. {gains}{included}."
            f"{_profile(check, losses)}",
            figure=losses[0].gain,
            unit="×",
            remedy=_remedy(losses[0]),
            caveats=_caveats(losses),
        )


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
        else "No other remedy was tried in the time: larger batch sizes and input from files "
        "are open.",
        remedy="" if others else "To try them in 10 minutes: cubemesh run quick --set minutes=10",
        caveats=_caveats(others),
    )


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
        f"{format_seconds(images / figure.value)}, if the input keeps up.",
        value=images / figure.value,
        unit="s",
        low=images / high,
        high=images / low,
        caveats=workload.caveats,
    )


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
        Cell(text=loss.cause),
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
    for workload in check.ranked:
        eager = workload.speedups.get("pytorch")
        if eager is None:
            continue
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
        yield " ".join([INTERVAL_MEANING, *intervals])
    yield from CONDITIONS


def _coverage(workload: Workload) -> str:
    """What the interval of a throughput covers, and where it comes from."""
    if workload.prior is not None:
        return f"between processes, with the spread {workload.prior.source}"
    if workload.processes > 1:
        return "between processes; more of them narrow it (--set repeats=3)"
    return "within the process; another one may differ by more (--set repeats=3)"


CONDITIONS = (
    "All programs of a network have the same precision, image layout and batch size, one batch "
    "that is resident on the device, and run interleaved in one process. The throughput of the "
    "fastest known program pools all its runs.",
    "‘Matmul use’ is the counted matrix operations per second over the fastest matrix product "
    "measured on this device.",
)
"""Conditions of the figures."""
