"""Findings, tables and chart of `performance-check`.

A workload has one throughput: the windows of all runs of its fastest program are pooled, those of
an interleaved run included. A gain is a ratio from one interleaved process where the two programs
can share one, and a ratio of two runs for programs that read files, whose threads cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.experiments.analysis.groups import Group, caveats, group_by
from cubemesh.experiments.analysis.ratios import (
    bounds,
    format_ratio,
    ratio,
    reciprocal,
    significance,
)
from cubemesh.experiments.analysis.utilization_columns import share_cell
from cubemesh.machines.catalogue import find
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.networks.own_input import at_own_size, is_imagenet
from cubemesh.papers.published import figures as published_figures
from cubemesh.papers.published import stock_figures
from cubemesh.papers.published.nearest import precision_distance, same_device
from cubemesh.schema import (
    Axis,
    Ceiling,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    Point,
    PublishedFigure,
    RunRecord,
    Table,
    TrainSteps,
)
from cubemesh.units import format_interval, format_list, format_number, format_seconds

STOCK, DOUBLED, FILES, GPU_DECODED, CACHED, PROFILE, SINGLE = (
    *("stock", "batch size", "files", "files, decoded on the GPU", "files, decoded once"),
    *("profile", "single"),
)
"""What a run was made for."""
PROGRAM_NAMES = {
    "pytorch": "PyTorch eager",
    "pytorch-compiled": "torch.compile",
    "pytorch-captured": "pytorch-captured",
}
IMAGENET_IMAGES, IMAGENET_EPOCHS = 1_281_167, 90
MIN_LOSS = 0.02
"""Smallest fraction of throughput that is reported as a loss."""
REMEDIES = {
    GPU_DECODED: "decode_location=device",
    CACHED: "cache_decoded=true",
}


def role_of(record: RunRecord) -> str:
    """What a training run of this experiment was made for."""
    spec, other = record.spec, record.spec.other
    assert isinstance(spec.work, TrainSteps)
    if other is not None:
        return DOUBLED if other.batch_per_device != spec.batch_per_device else STOCK
    if spec.budget.attribution:
        return PROFILE
    if spec.work.data == "synthetic":
        return SINGLE
    if spec.program.cache_decoded:
        return CACHED
    return GPU_DECODED if spec.program.decode_location == "device" else FILES


@dataclass(frozen=True)
class Loss:
    """A measured loss of throughput, and the remedy that was tried."""

    name: str
    baseline: str
    """The program that has the loss."""
    gain: Figure
    """Throughput with the remedy, as a multiple of the baseline's."""
    remedy: str
    caveats: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Fraction of the remedied throughput that the baseline lacks."""
        return 1 - 1 / self.gain.value


@dataclass(frozen=True)
class Workload:
    """The runs of one network and batch size."""

    network: str
    batch: int
    records: tuple[RunRecord, ...]

    def role(self, name: str) -> list[RunRecord]:
        """The runs made for `name`."""
        return [r for r in self.records if role_of(r) == name]

    @cached_property
    def group(self) -> Group[str]:
        """All runs of the fastest known program on resident data."""
        own = [r for r in self.records if role_of(r) in (STOCK, DOUBLED, SINGLE)]
        return Group(self.network, tuple(own or self.records))

    @property
    def spec_words(self) -> str:
        """`batch size 8, fp32`."""
        return f"batch size {self.batch}, {self.group.records[0].spec.program.precision}"

    @property
    def known(self) -> str:
        """The framework that was expected to be the fastest, to which others are compared."""
        return self.group.records[0].spec.program.framework

    @cached_property
    def _inverse(self) -> dict[str, tuple[Figure, RunRecord]]:
        """Stock framework → throughput of `known` relative to it, with the interleaved run."""
        found = {}
        for record in self.role(STOCK):
            measured, other = ratio_of_record(record), record.spec.other
            if measured is not None and other is not None and measured.low and measured.high:
                figure = Figure(
                    value=measured.value, unit="×", low=measured.low, high=measured.high
                )
                found[other.program.framework] = reciprocal(figure, 1.0, "×"), record
        return found

    @cached_property
    def fastest(self) -> str:
        """The framework that is fastest: `known`, unless a stock one is significantly faster."""
        slower = {n: f.value for n, (f, _) in self._inverse.items() if significance(f) < 0}
        return min(slower, key=lambda name: slower[name], default=self.known)

    @cached_property
    def throughput(self) -> Figure | None:
        """Samples per second of the fastest program; None where nothing ran."""
        if self.fastest == self.known:
            return self.group.throughput
        return self._inverse[self.fastest][1].figures["against_throughput_per_s"]

    @cached_property
    def speedups(self) -> dict[str, Figure]:
        """Each other framework → throughput of the fastest program relative to it."""
        found = {self.known: Figure(value=1.0, unit="×")}
        found |= {name: figure for name, (figure, _) in self._inverse.items()}
        best = found.pop(self.fastest)
        return {name: ratio(figure, best) for name, figure in found.items()}

    def record_of(self, framework: str) -> RunRecord:
        """The run that compared a framework."""
        return self._inverse[framework][1] if framework in self._inverse else self.group.records[0]

    @cached_property
    def losses(self) -> list[Loss]:
        """The measured losses, the largest first."""
        return sorted(self._losses(), key=lambda loss: -loss.share)

    def _losses(self) -> Iterator[Loss]:
        program = self.known
        if "pytorch" in self.speedups:
            yield Loss(
                "unfused kernels" if self.on_cpu else "kernel launches and unfused kernels",
                "PyTorch eager",
                self.speedups["pytorch"],
                f"framework={self.fastest}",
                Group(0, (self.record_of("pytorch"),)).caveats,
            )
        by_role = {g.key: g for g in group_by(self.records, role_of)}
        files = by_role.get(FILES)
        if files is not None and files.throughput is not None:
            tried = [
                (f, name, g)
                for name in REMEDIES
                if (g := by_role.get(name)) is not None and (f := g.throughput) is not None
            ]
            if tried:
                best, name, group = max(tried, key=lambda one: one[0].value)
                yield Loss(
                    "reading and decoding JPEG files",
                    f"{program} on JPEG files",
                    ratio(best, files.throughput),
                    REMEDIES[name],
                    caveats(files, group),
                )
        for record in self.role(DOUBLED):
            measured = ratio_of_record(record)
            if measured is not None:
                gain = Figure(value=measured.value, unit="×", low=measured.low, high=measured.high)
                yield Loss(
                    f"batch size {self.batch}",
                    program,
                    gain,
                    f"batch size {2 * self.batch}",
                    Group(0, (record,)).caveats,
                )

    @cached_property
    def published(self) -> tuple[PublishedFigure, Figure] | None:
        """The fastest published result per device of this model in this class of precision, and the
        throughput here as a multiple of it. On a CPU: the fastest published of any."""
        measured, device = self.throughput, self.device
        if measured is None or not at_own_size(self.group.records[0].spec.work):
            return None
        precision = self.group.records[0].spec.program.precision
        rated = []
        for figure in (*published_figures(), *stock_figures()):
            if figure.canonical != self.network or not figure.precision:
                continue
            if precision_distance(precision, figure.precision):
                continue
            if self.on_cpu:
                rate = _cpu_rate(figure)
            else:
                alike = figure.devices and same_device(device, figure.device)
                rated_here = alike and figure.metric == "throughput"
                rate = figure.value / (figure.devices or 1) if rated_here else None
            if rate is not None:
                rated.append((rate, figure))
        if not rated:
            return None
        rate, figure = max(rated, key=lambda one: one[0])
        return figure, ratio(measured, Figure(value=rate, unit="samples/s"))

    @property
    def device(self) -> str:
        """Name of the device; empty if nothing ran."""
        return next((k.device_name for r in self.records for k in r.ranks if k.device_name), "")

    @property
    def on_cpu(self) -> bool:
        """Whether it ran on the CPU."""
        return any(k.device == "cpu" for r in self.records for k in r.ranks)


def _cpu_rate(figure: PublishedFigure) -> float | None:
    """Samples per second of a published result on CPUs: a throughput, or the time of forward and
    backward passes, which excludes the update."""
    if figure.devices != 0:
        return None
    if figure.metric == "throughput":
        return figure.value
    if figure.metric == "forward+backward time" and figure.batch_per_device:
        return 1e3 * figure.batch_per_device / figure.value
    return None


@dataclass(frozen=True)
class PerformanceCheck:
    """The workloads of one check, in the order they ran."""

    workloads: tuple[Workload, ...]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> PerformanceCheck:
        """From its records."""
        steps = [r for r in records if not isinstance(r.spec.work, Ceiling)]
        return cls(
            tuple(
                Workload(group.key[0], group.key[1], group.records)
                for group in group_by(steps, _key)
            )
        )


def _key(record: RunRecord) -> tuple[str, int]:
    work = record.spec.work
    assert isinstance(work, TrainSteps)
    return work.network, work.batch_per_device


def findings(check: PerformanceCheck) -> Iterator[Finding]:
    """In the order of a summary: throughputs, published results, loss, further gains, duration."""
    for workload in reversed(check.workloads):
        yield _throughput(workload)
    for workload in reversed(check.workloads):
        yield from _published(workload)
    yield from _largest_loss(check)
    yield from _further(check)
    for workload in check.workloads:
        yield from _training_time(workload)


def _throughput(workload: Workload) -> Finding:
    figure, group = workload.throughput, workload.group
    if figure is None:
        return Finding(code="failed-run", text=f"{workload.network}: {group.why}.")
    relative = [
        f"{format_ratio(gain)} the speed of {PROGRAM_NAMES.get(name, name)}"
        for name, gain in workload.speedups.items()
    ]
    use = group.median_of("ceiling_mfu_percent") if workload.fastest == workload.known else None
    if use is not None and use <= 100:
        relative.append(f"{use:.0f} % of the fastest matrix product of this device")
    program = PROGRAM_NAMES.get(workload.fastest, workload.fastest)
    return Finding.of(
        code="throughput",
        question=f"How fast does this machine train {workload.network}?",
        text=f"{workload.network} trains at {_rate(figure)} ({workload.spec_words}, "
        f"{program}){': ' + format_list(relative) if relative else ''}.",
        figure=figure,
        unit="samples/s",
        caveats=group.caveats,
    )


def _rate(figure: Figure) -> str:
    return format_interval(figure.value, figure.low, figure.high, "samples/s")


def _published(workload: Workload) -> Iterator[Finding]:
    found = workload.published
    if found is None:
        return
    figure, times = found
    passes = "" if figure.metric == "throughput" else " for forward and backward passes"
    passes += f" on each of {figure.devices}" if (figure.devices or 0) > 1 else ""
    batch = f", batch size {figure.batch_per_device}" if figure.batch_per_device else ""
    rate = workload.throughput
    assert rate is not None
    device = figure.device.removeprefix("CPU: ")
    yield Finding.of(
        code="published-ratio",
        question=f"What do others reach with {workload.network}?",
        text=f"{workload.network}: {format_ratio(times)} the fastest published result on "
        f"{'a CPU' if workload.on_cpu else 'this device'}, "
        f"{format_number(rate.value / times.value)} samples/s{passes} "
        f"({device}, {figure.framework.split(',')[0]}, {figure.precision}{batch}).",
        figure=times,
        unit="× published",
        caveats=workload.group.caveats,
    )


def _ranked(check: PerformanceCheck) -> list[tuple[Workload, Loss]]:
    found = [(w, loss) for w in check.workloads for loss in w.losses]
    return sorted(found, key=lambda one: -one[1].share)


def _largest_loss(check: PerformanceCheck) -> Iterator[Finding]:
    ranked = _ranked(check)
    found = [(w, o) for w, o in ranked if significance(o.gain) > 0 and o.share >= MIN_LOSS]
    if ranked and not found:
        yield Finding(
            code="no-loss",
            question="What is the largest loss?",
            text="No remedy that was tried makes training significantly faster.",
        )
    for workload, loss in found[:1]:
        yield Finding.of(
            code="largest-loss",
            question="What is the largest loss?",
            text=f"{loss.baseline} loses {100 * loss.share:.0f} % of the throughput of "
            f"{workload.network} to {loss.name}. Measured with {loss.remedy}: "
            f"{format_ratio(loss.gain)} the throughput.{_profile(workload)}",
            figure=loss.gain,
            unit="× with the remedy",
            remedy=f"Use {loss.remedy}.",
            caveats=loss.caveats,
        )


def _profile(workload: Workload) -> str:
    """Largest overhead of an eager step, where it was attributed."""
    for record in workload.role(PROFILE):
        overhead = largest_bottleneck(record.parts, record.spec)
        if overhead is not None and overhead.name:
            return f" An eager step spends {overhead.text}."
    return ""


def _further(check: PerformanceCheck) -> Iterator[Finding]:
    ranked = _ranked(check)
    found = [(w, o) for w, o in ranked if significance(o.gain) > 0 and o.share >= MIN_LOSS][1:]
    for workload, loss in found[:2]:
        yield Finding.of(
            code="further-gain",
            text=f"{workload.network}, {loss.baseline}: {loss.remedy} gives "
            f"{format_ratio(loss.gain)} the throughput.",
            figure=loss.gain,
            unit="×",
            caveats=loss.caveats,
        )


def _training_time(workload: Workload) -> Iterator[Finding]:
    figure = workload.throughput
    if figure is None or not is_imagenet(workload.group.records[0].spec.work):
        return
    low, high = bounds(figure)
    images = IMAGENET_EPOCHS * IMAGENET_IMAGES
    yield Finding(
        code="training-time",
        question=f"How long does {workload.network} train on ImageNet?",
        text=f"{IMAGENET_EPOCHS} epochs of ImageNet take {format_seconds(images / figure.value)} "
        f"with {workload.network} at this rate, if the input keeps up.",
        value=images / figure.value,
        unit="s",
        low=images / high,
        high=images / low,
        caveats=workload.group.caveats,
    )


def tables(check: PerformanceCheck) -> Iterator[Table]:
    """Programs by network; trials; published results."""
    yield Table(
        title="Training throughput by program, interleaved in one process",
        columns=(
            Column(name="network"),
            Column(name="batch size"),
            Column(name="program"),
            Column(name="precision"),
            Column(name="throughput", unit="samples/s"),
            Column(name="fastest / this", unit="×"),
            Column(name="matmul use", unit="%", digits=2),
        ),
        rows=tuple(row for w in check.workloads for row in _program_rows(w)),
    )
    trials = tuple(row for w in check.workloads for row in _trial_rows(w))
    if trials:
        yield Table(
            title="Remedies that were tried",
            columns=(
                Column(name="network"),
                Column(name="program"),
                Column(name="loss"),
                Column(name="remedy"),
                Column(name="gain", unit="×"),
            ),
            rows=trials,
        )
    published = tuple(row for w in check.workloads for row in _published_rows(w))
    if published:
        yield Table(
            title="Fastest published results",
            columns=(
                Column(name="network"),
                Column(name="device"),
                Column(name="framework"),
                Column(name="precision"),
                Column(name="batch size"),
                Column(name="throughput", unit="samples/s"),
                Column(name="here / published", unit="×"),
                Column(name="source"),
            ),
            rows=published,
        )


def _program_rows(workload: Workload) -> Iterator[tuple[Cell, ...]]:
    group = workload.group
    precision = group.records[0].spec.program.precision
    use = group.median_of("ceiling_mfu_percent")
    runs = {workload.known: (group, group.throughput, use)}
    for record in workload.role(STOCK):
        other, own = record.spec.other, Group(workload.network, (record,))
        assert other is not None
        runs[other.program.framework] = own, record.figures.get("against_throughput_per_s"), None
    for name, (own, figure, use) in runs.items():
        yield (
            Cell(text=workload.network),
            Cell(text=str(workload.batch)),
            Cell(text=PROGRAM_NAMES.get(name, name)),
            Cell(text=precision),
            own.cell(figure),
            Cell(text="fastest")
            if name == workload.fastest
            else own.cell(workload.speedups.get(name)),
            Cell(text="–") if use is None else share_cell(use, own.run_id),
        )


def _trial_rows(workload: Workload) -> Iterator[tuple[Cell, ...]]:
    for loss in workload.losses:
        yield (
            Cell(text=workload.network),
            Cell(text=loss.baseline),
            Cell(text=loss.name),
            Cell(text=loss.remedy),
            Cell(value=loss.gain.value, low=loss.gain.low, high=loss.gain.high),
        )


def _published_rows(workload: Workload) -> Iterator[tuple[Cell, ...]]:
    if workload.published is None or (measured := workload.throughput) is None:
        return
    figure, times = workload.published
    yield (
        Cell(text=workload.network),
        Cell(text=figure.device),
        Cell(text=figure.framework.split(",")[0]),
        Cell(text=figure.precision),
        Cell(text=str(figure.batch_per_device or "not stated")),
        Cell(value=measured.value / times.value),
        Cell(value=times.value, low=times.low, high=times.high),
        Cell(text=figure.source),
    )


def charts(check: PerformanceCheck) -> Iterator[Chart]:
    """Throughput of each program relative to PyTorch eager."""
    lines: dict[str, list[Point]] = {}
    for workload in check.workloads:
        eager = workload.speedups.get("pytorch")
        if eager is None:
            continue
        relative = {
            name: ratio(eager, figure) if name != "pytorch" else Figure(value=1.0, unit="×")
            for name, figure in workload.speedups.items()
        }
        for name, figure in {**relative, workload.fastest: eager}.items():
            lines.setdefault(PROGRAM_NAMES.get(name, name), []).append(
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
            lines=tuple(Line(name=name, points=tuple(p)) for name, p in lines.items()),
        )


def notes(check: PerformanceCheck) -> tuple[str, ...]:
    """Conditions of the figures."""
    found = [
        "All programs of a network have the same precision, image layout and batch size, one batch "
        "that is resident on the device, and run interleaved in one process. The throughput of the "
        "fastest known program pools all its runs.",
        "‘Matmul use’ is the counted matrix operations per second over the fastest matrix product "
        "measured on this device.",
    ]
    devices = {w.device for w in check.workloads if w.device}
    for device in sorted(devices):
        sheet = find(device)
        if sheet is not None:
            found.append(f"The device is listed in the catalogue as {sheet.name}.")
    return tuple(found)
