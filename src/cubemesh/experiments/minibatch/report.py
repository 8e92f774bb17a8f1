"""Findings, table, charts and notes of `minibatch` for one network."""

from __future__ import annotations

from collections.abc import Iterator

from cubemesh.experiments.analysis.answer import failed_run
from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.published_rows import published_line, published_sweep
from cubemesh.experiments.analysis.ratios import plus_minus
from cubemesh.experiments.analysis.utilization_columns import (
    COLUMNS,
    NOTE,
    known_figures,
    share_cell,
    utilization_cells,
    utilization_columns,
)
from cubemesh.experiments.core.passes import PASSES
from cubemesh.experiments.minibatch.analysis import BatchGroups, MinibatchData
from cubemesh.experiments.minibatch.curvature import curvature_findings, superlinear_doublings
from cubemesh.experiments.minibatch.input_bound import (
    device_kind,
    device_utilization,
    input_bound_findings,
    utilization_cell,
)
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Finding, Line, Point, Table
from cubemesh.units import format_quantity


def findings(data: MinibatchData) -> Iterator[Finding]:
    """Throughput, its knee, curvature, matmul use, input-bound batch sizes, and failures."""
    network, groups, measured = data.network, data.training, data.measured
    if not measured:
        if groups:
            yield Finding(
                code="no-measurement",
                text=f"{network} did not run at any batch size. {groups[0].key}: {groups[0].why}.",
            )
        return
    best, top = max(measured, key=lambda p: p[1].value)
    yield Finding.of(
        code="throughput",
        question="How fast?",
        text=f"This machine trains {network} at {plus_minus(top)} {data.unit}, at batch size "
        f"{best.key}.",
        figure=top,
        unit=data.unit,
        caveats=best.caveats,
    )
    if len(measured) > 1:
        yield from _knee_findings(data)
        yield from superlinear_doublings(groups, "a step")
        for name, own in data.passes.items():
            article = "an" if name == "inference" else "a"
            yield from superlinear_doublings(own, f"{article} {PASSES[name].short}")
    yield from curvature_findings(data.curvatures)
    if data.rate:
        yield _matmul_finding(data, best, top)
    on_device = {g.key: g for g in data.device}
    pairs = [(f"batch size {g.key}", g, on_device[g.key]) for g in groups if g.key in on_device]
    yield from input_bound_findings(network, pairs)
    for group in groups:
        if group.throughput is None:
            yield failed_run(f"Batch size {group.key}", group)


def _knee_findings(data: MinibatchData) -> Iterator[Finding]:
    first, slow = data.measured[0]
    knee, figure = data.knee
    if knee.key == first.key:
        yield Finding(
            code="throughput-flat",
            text=f"Throughput does not increase with the batch size from {first.key}.",
        )
        return
    gain = figure.value / slow.value
    reached = f"{plus_minus(figure)} {data.unit}, {gain:.2g}× batch size {first.key}"
    noise = caveats(*(g for g, _ in data.measured))
    if knee.key == data.measured[-1][0].key:
        yield Finding(
            code="throughput-rising",
            text=f"Throughput still increases at batch size {knee.key}, the largest measured: "
            f"{reached}.",
            remedy=f"Try larger ones: --set batch_sizes={2 * knee.key},{4 * knee.key}",
            value=knee.key,
            unit="samples",
            caveats=noise,
        )
    else:
        yield Finding(
            code="throughput-knee",
            text=f"Throughput stops increasing at batch size {knee.key}: {reached}.",
            value=knee.key,
            unit="samples",
            caveats=noise,
        )
    yield Finding(
        code="small-batch-cost",
        question="What does it lose the time to?",
        text=f"At batch size {first.key} a sample takes {gain:.2g}× as long as at {knee.key}.",
        caveats=caveats(first, knee),
        value=gain,
        unit="× the time",
        remedy=f"Train at batch size {knee.key} if accuracy allows it.",
    )


def _matmul_finding(data: MinibatchData, best: Group[int], top: Figure) -> Finding:
    percent = 100 * data.matmul_fraction(best, top)
    whose = "this device's" if data.devices == 1 else f"these {data.devices} devices'"
    if percent > 100:
        return Finding(
            code="above-ceiling",
            text=f"At batch size {best.key} {data.network} would need {percent / 100:.2f} times "
            f"the operations per second of {whose} fastest matrix product, "
            f"{format_quantity(data.rate or 0.0, 'FLOP/s')}: its convolutions use a fast algorithm "
            "with fewer operations than counted, and its matmul use is unknown.",
            caveats=best.caveats,
        )
    return Finding(
        code="matmul-use",
        question="How much of its matrix rate?",
        text=f"At batch size {best.key} {data.network} reaches {percent:.0f} % of {whose} fastest "
        f"matrix product, {format_quantity(data.rate or 0.0, 'FLOP/s')}.",
        value=percent,
        unit="%",
        caveats=best.caveats,
    )


def table(data: MinibatchData, title: str = "") -> Table:
    """A row for each batch size, with the reason if there is no figure."""
    columns = [
        Column(name="batch size"),
        Column(name="throughput", unit=data.unit),
        Column(name="step", unit="ms"),
        Column(name="per sample", unit="ms"),
        Column(name="memory", unit="MiB"),
    ]
    if any(device_utilization(g) for g in data.training):
        columns.append(Column(name="utilization", unit="%"))
    columns += [Column(name=PASSES[name].short, unit="ms") for name in data.passes]
    if data.device:
        columns.append(Column(name="data on device", unit=data.unit))
    if data.rate:
        columns.append(Column(name="matmul use", unit="%", digits=2))
    names = [c.name for c in columns]
    use = _utilization_names(data)
    rows = tuple(
        (*_row(group, data, names), *utilization_cells(group, use)) for group in data.training
    )
    return Table(title=title, columns=(*columns, *utilization_columns(use)), rows=rows)


def _utilization_names(data: MinibatchData) -> list[str]:
    """Utilization figures besides "matmul use", whose ceiling is measured in the same run."""
    return known_figures(data.training, [name for name in COLUMNS if name != "ceiling_mfu_percent"])


def _row(group: Group[int], data: MinibatchData, names: list[str]) -> tuple[Cell, ...]:
    figure = group.throughput
    name = Cell(text=str(group.key), run_id=group.run_id)
    if figure is None:
        return (name, *[group.cell(None)] * (len(names) - 1))
    memory = group.median_of("peak_memory_bytes")
    cells = {
        "batch size": name,
        "throughput": group.cell(figure),
        "step": Cell(value=1e3 * group.key * data.devices / figure.value),
        "per sample": Cell(value=1e3 / figure.value),
        "memory": Cell(
            value=None if memory is None else memory / 2**20, reason="" if memory else "unknown"
        ),
        "utilization": utilization_cell(group),
        "data on device": _cell_of(data.device, group.key, milliseconds=False),
    }
    for kind, own in data.passes.items():
        cells[PASSES[kind].short] = _cell_of(own, group.key, milliseconds=True)
    if data.rate:
        cells["matmul use"] = share_cell(100 * data.matmul_fraction(group, figure), group.run_id)
    return tuple(cells[name] for name in names)


def _cell_of(groups: BatchGroups, batch: int, *, milliseconds: bool) -> Cell:
    group = next((g for g in groups if g.key == batch), None)
    if group is None:
        return Cell(text="–")
    return group.cell(group.step_ms if milliseconds else group.throughput)


def charts(data: MinibatchData) -> Iterator[Chart]:
    """Throughput by batch size, and utilization of a GPU."""
    network = data.network
    points = tuple(g.point(g.key, g.throughput) for g in data.training)
    if not points:
        return
    lines = [Line(name=f"{network}, data on host" if data.device else network, points=points)]
    others = [(data.device, "data on device")]
    others += [(own, PASSES[kind].short) for kind, own in data.passes.items()]
    for groups, name in others:
        if groups:
            own = tuple(g.point(g.key, g.throughput) for g in groups)
            lines.append(Line(name=f"{network}, {name}", points=own))
    published = published_line(published_sweep(network, data.training))
    yield Chart(
        name=f"minibatch-{network}",
        title=f"{network}: throughput by batch size",
        kind="line",
        x=Axis(name="batch size", scale="log2"),
        y=Axis(name="throughput", unit=data.unit, from_zero=True),
        lines=(*lines, *published),
    )
    if device_kind(data.training) == "GPU":  # a CPU does not wait for its own memory
        yield Chart(
            name=f"minibatch-{network}-utilization",
            title=f"{network}: utilization by batch size",
            kind="line",
            x=Axis(name="batch size", scale="log2"),
            y=Axis(name="utilization", unit="%", from_zero=True),
            lines=(Line(name=network, points=tuple(map(_utilization_point, data.training))),),
        )


def _utilization_point(group: Group[int]) -> Point:
    found = device_utilization(group)
    if found is None:
        return Point(x=group.key, reason=group.why if not group.ok else "not sampled")
    return Point(x=group.key, y=round(found[1], 1), run_id=group.run_id)


def notes(data: MinibatchData) -> Iterator[str]:
    """Definitions of the figures."""
    yield (
        "Forward, backward and update; samples over elapsed time. ± is the 95 % confidence "
        "interval over the windows of one process; processes can differ by more (repeats=3 "
        "measures it)."
    )
    if "inference" in data.passes:
        yield (
            "The inference pass is a forward pass in evaluation mode, without the loss, of batches "
            "that are queued."
        )
    if "forward" in data.passes:
        yield (
            "The forward pass is measured in a run of its own; the rest of a step is the backward "
            "pass and the update."
        )
    if "forward-backward" in data.passes:
        yield (
            "The forward and backward pass is measured in a run of its own, in training mode and "
            "with the loss; it computes every gradient and updates nothing."
        )
    if any(one.significant for one in data.curvatures):
        yield (
            "Curvature is the second difference over doublings. Its causes come from separate "
            "profiled runs (profile=true)."
        )
    if data.rate:
        where = "this device" if data.devices == 1 else f"each of {data.devices} devices, summed"
        yield (
            "Matmul use is the network's matrix FLOPs per second over the fastest matrix product "
            f"measured on {where}, {format_quantity(data.rate, 'FLOP/s')}."
        )
    if data.devices > 1:
        yield (
            f"The batch size is per device; the global one is {data.devices} times that, and "
            f"{data.unit} are those of all {data.devices} devices."
        )
    if _utilization_names(data):
        yield NOTE
