"""The table, the charts and the warnings of `minibatch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.published_rows import published_line, published_sweep
from cubemesh.experiments.analysis.utilization import (
    COLUMNS,
    NOTE,
    known_figures,
    utilization_cells,
    utilization_columns,
)
from cubemesh.experiments.minibatch.input_starvation import (
    device_kind,
    device_utilisation,
    utilisation_cell,
)
from cubemesh.forecast.compute import utilisation as matrix_share
from cubemesh.networks import build_for
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Line,
    NetworkWork,
    Point,
    Table,
    Warning,
    warn,
)
from cubemesh.units import format_quantity

Groups = Sequence[Group[int]]
"""Groups of records by minibatch."""


@dataclass(frozen=True, kw_only=True)
class MinibatchData:
    """What was measured at each minibatch."""

    network: str
    training: Groups
    """Fed as asked; from the host, where both were asked for."""
    device: Groups = ()
    """Fed from the device, beside the others."""
    forward: Groups = ()
    rate: float | None = None
    """The fastest matrix product, FLOP/s, of all devices together."""
    devices: int = 1

    @property
    def whose(self) -> str:
        """The device, or all of them, in a sentence."""
        return "this device's" if self.devices == 1 else f"these {self.devices} devices'"

    def share(self, group: Group[int], figure: Figure) -> float:
        """Matrix FLOPs per second of training over the fastest matrix product."""
        work = group.records[0].spec.work
        assert isinstance(work, NetworkWork)
        assert self.rate
        net = build_for(work)
        return matrix_share(net, group.key, group.key / figure.value, self.rate)


def table(shown: MinibatchData) -> Table:
    """A row a minibatch; the reason where there is no figure."""
    columns = [
        Column(name="minibatch"),
        Column(name="samples/s"),
        Column(name="step", unit="ms"),
        Column(name="a sample", unit="ms"),
        Column(name="memory", unit="MiB"),
    ]
    if any(device_utilisation(g) for g in shown.training):
        columns.append(Column(name="utilisation", unit="%"))
    if shown.forward:
        columns.append(Column(name="forward alone", unit="ms"))
    if shown.device:
        columns.append(Column(name="data on the device", unit="samples/s"))
    if shown.rate:
        columns.append(Column(name="matrix use", unit="%", digits=2))
    names = [c.name for c in columns]
    shares = _shares(shown)
    rows = tuple(
        (*_row(group, shown, names), *utilization_cells(group, shares)) for group in shown.training
    )
    return Table(title="", columns=(*columns, *utilization_columns(shares)), rows=rows)


def _shares(shown: MinibatchData) -> list[str]:
    """Shares beside "matrix use", which is told here against the ceiling of the same question."""
    return known_figures(
        shown.training, [name for name in COLUMNS if name != "ceiling_mfu_percent"]
    )


def _row(group: Group[int], shown: MinibatchData, names: list[str]) -> tuple[Cell, ...]:
    figure = group.throughput
    name = Cell(text=str(group.key), run_id=group.run_id)
    if figure is None:
        return (name, *[group.cell(None)] * (len(names) - 1))
    step_s, memory = group.median_of("step_s"), group.median_of("peak_memory_bytes")
    cells = {
        "minibatch": name,
        "samples/s": group.cell(figure),
        "step": Cell(value=None if step_s is None else 1e3 * step_s),
        "a sample": Cell(value=1e3 / figure.value),
        "memory": Cell(
            value=None if memory is None else memory / 2**20, reason="" if memory else "not known"
        ),
        "utilisation": utilisation_cell(group),
        "forward alone": _beside(shown.forward, group.key, milliseconds=True),
        "data on the device": _beside(shown.device, group.key, milliseconds=False),
    }
    if shown.rate:
        cells["matrix use"] = Cell(value=100 * shown.share(group, figure))
    return tuple(cells[name] for name in names)


def _beside(groups: Groups, batch: int, *, milliseconds: bool) -> Cell:
    group = next((g for g in groups if g.key == batch), None)
    if group is None:
        return Cell(text="–")
    return group.cell(group.step_ms if milliseconds else group.throughput)


def charts(shown: MinibatchData) -> Iterator[Chart]:
    """Samples/s, and a GPU's utilisation, by minibatch; none where nothing was asked."""
    network = shown.network
    points = tuple(g.point(g.key, g.throughput) for g in shown.training)
    if not points:
        return
    lines = [Line(name=f"{network}, data on the host" if shown.device else network, points=points)]
    for groups, name in ((shown.device, "data on the device"), (shown.forward, "forward alone")):
        if groups:
            own = tuple(g.point(g.key, g.throughput) for g in groups)
            lines.append(Line(name=f"{network}, {name}", points=own))
    published = published_line(published_sweep(network, shown.training))
    yield Chart(
        name=f"minibatch-{network}",
        title=f"{network}: samples/s by minibatch",
        kind="line",
        x=Axis(name="minibatch", scale="log2"),
        y=Axis(name="throughput", unit="samples/s", from_zero=True),
        lines=(*lines, *published),
    )
    if device_kind(shown.training) == "GPU":  # a CPU is never starved by its own memory
        busy = tuple(_busy_point(g) for g in shown.training)
        yield Chart(
            name=f"minibatch-{network}-utilisation",
            title=f"{network}: utilisation by minibatch",
            kind="line",
            x=Axis(name="minibatch", scale="log2"),
            y=Axis(name="utilisation", unit="%", from_zero=True),
            lines=(Line(name=network, points=busy),),
        )


def _busy_point(group: Group[int]) -> Point:
    found = device_utilisation(group)
    if found is None:
        return Point(x=group.key, reason=group.why if not group.ok else "not sampled")
    return Point(x=group.key, y=round(found[1], 1), run_id=group.run_id)


def above_ceiling(shown: MinibatchData) -> Iterator[Warning]:
    """More than all of a ceiling is an error of one of the two figures, or a fast algorithm."""
    done = [(g, f) for g in shown.training if (f := g.throughput) is not None]
    if not shown.rate or not done:
        return
    share, worst = max((shown.share(g, f), g.key) for g, f in done)
    if share > 1:
        yield warn(
            "above-ceiling",
            f"At minibatch {worst} training reaches {100 * share:.0f} % of the fastest matrix "
            "product: convolutions of 3×3 and more can run by Winograd's or an FFT algorithm, "
            "which need fewer operations than are counted.",
            "Compare rows by it, and read nothing into the absolute value.",
        )


def notes(shown: MinibatchData) -> tuple[str, ...]:
    """What a reader must know to read the figures right."""
    told = [
        "Forward, backward and update; samples over elapsed time. ± is the 95 % interval over the "
        "windows of one process; a fresh process can differ by more (repeats=3 shows it)."
    ]
    if shown.forward:
        told.append(
            "Forward alone is measured on its own; the rest of a step is not the backward pass "
            "alone, but the update as well."
        )
    if len(shown.training) > 2:
        told.append(
            "A bend is the second difference over doublings. What runs on its two sides is told "
            "where steps were taken apart there (profile=true); those are not the timed ones."
        )
    if shown.rate:
        where = "this device" if shown.devices == 1 else f"each of {shown.devices} devices, summed"
        told.append(
            "Matrix use is the network's matrix FLOPs per second over the fastest matrix product "
            f"measured on {where}, {format_quantity(shown.rate, 'FLOP/s')}."
        )
    if shown.devices > 1:
        told.append(
            f"A minibatch is what each of {shown.devices} devices takes in a step; the global one "
            f"is {shown.devices} times that, and samples/s are those of all together."
        )
    if _shares(shown):
        told.append(NOTE)
    return tuple(told)
