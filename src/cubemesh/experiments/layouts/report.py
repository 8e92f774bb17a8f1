"""Report of `layouts`: the fastest layout, why the others are slower, memory with its forecast.

The reason is the part of the attributed step that is longest compared with the fastest layout:
communication that nothing hides, waiting for the slowest device, or computation; of a pipeline,
what a stage waits for. Forecasts: forecast.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
from cubemesh.experiments.analysis.training_costs import tokens_per_sample
from cubemesh.experiments.analysis.utilization_columns import share_cell
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.experiments.layouts.forecast import (
    KINDS,
    datasheet_forecast,
    memory_by_kind,
    memory_forecast,
    ranks_per_sample,
    rate_forecast,
    searched_layout,
)
from cubemesh.experiments.scaling.analysis import profiled_record
from cubemesh.measure.attribution.attribution import COMMUNICATION, STRAGGLER
from cubemesh.measure.attribution.bottlenecks import mean_parts
from cubemesh.networks import build_for
from cubemesh.networks.graph import Network
from cubemesh.parallel import pipeline
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.parallel.strategies import strategy
from cubemesh.parallel.tensor_parallel import TensorParallel
from cubemesh.schema import Answer, Cell, Column, Figure, Finding, RunRecord, Table, TrainSteps
from cubemesh.units import format_devices

_GIB = 2**30
Key = tuple[int, str, int]
"""(devices, strategy, devices that share a sample: stages of a pipeline, or those that divide each
layer or each sequence)."""
NOTES = (
    "All layouts train the same global batch. MFU: the counted matrix operations of forward and "
    "backward pass, recomputation left out, over the dense peak of the precision by the datasheet "
    "times the devices. Communication: what no computation hides, the mean over the ranks "
    "(docs/attribution.md); of a pipeline, what a stage waits for others.",
    "Forecasts use the rate of one device and nothing measured on several; ‘datasheet’ is that of "
    "`predict --search`, for transformers on GPUs of the catalogue.",
)
NOTE_BF16 = (
    "With bf16 sharded layouts compute every layer of a transformer in bf16, as FSDP's mixed "
    "precision does; the others compute normalizations and the residual stream in fp32 (autocast), "
    "so a part of the difference is precision, not communication."
)


@dataclass(frozen=True)
class Case:
    """A network at a batch size: one device, and the layouts of several."""

    groups: tuple[Group[Key], ...]

    @property
    def work(self) -> TrainSteps:
        """What all layouts train."""
        work = self.groups[0].records[0].spec.work
        assert isinstance(work, TrainSteps)
        return work

    @property
    def name(self) -> str:
        """`gpt2, 8 per device`."""
        return f"{self.work.network}, {self.work.batch_per_device} per device"

    @property
    def one(self) -> Group[Key] | None:
        """The runs on one device."""
        return next((g for g in self.groups if g.key[0] == 1), None)

    @property
    def several(self) -> dict[int, list[Group[Key]]]:
        """Devices → the layouts on them."""
        found: dict[int, list[Group[Key]]] = {}
        for group in self.groups:
            if group.key[0] > 1:
                found.setdefault(group.key[0], []).append(group)
        return found

    @cached_property
    def network(self) -> Network:
        """The graph."""
        return build_for(self.work)

    @cached_property
    def tokens(self) -> int:
        """Of a sample; 0 for images."""
        return tokens_per_sample(self.work) or 0

    def rate(self, group: Group[Key]) -> Figure | None:
        """Tokens/s, of images samples/s."""
        figure = group.throughput
        return figure and (figure.scaled(self.tokens, "tokens/s") if self.tokens else figure)


def layouts_answer(experiment: Experiment, records: Sequence[RunRecord]) -> Answer:
    """Findings and tables."""
    cases = [
        Case(tuple(group_by(g.records, _key)))
        for g in group_by(
            [r for r in records if isinstance(r.spec.work, TrainSteps)], lambda r: r.spec.work
        )
    ]
    bf16 = any(r.spec.program.precision == "bf16" for r in records)
    return answer_of(
        experiment,
        titled("Layouts", records),
        records,
        findings=[f for n, case in enumerate(cases) for f in _findings(case, card=n == 0)],
        tables=[t for case in cases for t in (_table(case, records), *_memory_table(case))],
        notes=(*NOTES, *((NOTE_BF16,) if bf16 else ())),
    )


def layout_name(key: Key) -> str:
    """`fully-sharded, data=4`; `hybrid, data=2 × stages=2`."""
    devices, sync, stages = key
    if devices == 1:
        return "one device"
    data = devices // stages
    axes = [f"data={data}"] * (data > 1 or stages == 1)
    axes += [f"{_axis(sync)}={stages}"] * (stages > 1)
    return f"{sync}, {' × '.join(axes)}"


def _axis(sync: str) -> str:
    if issubclass(strategy(sync), TensorParallel):
        return "tensor"
    if issubclass(strategy(sync), ContextParallel):
        return "context"
    return "stages" if issubclass(strategy(sync), pipeline.Pipeline) else "model"


def _key(record: RunRecord) -> Key:
    spec = record.spec
    return spec.placement.devices, spec.program.sync, ranks_per_sample(record)


def _findings(case: Case, *, card: bool) -> Iterator[Finding]:
    for devices, groups in case.several.items():
        ran = sorted((g for g in groups if g.throughput), key=lambda g: -_value(case, g))
        if ran:
            yield from _compared(case, devices, ran, card=card)
            card = False
        for group in groups:
            if not group.throughput:
                yield failed_run(
                    f"{case.name} on {devices} devices, {layout_name(group.key)}", group
                )
    if case.one is not None and not case.one.throughput:
        yield failed_run(f"{case.name} on one device", case.one)
    if not case.several:
        yield Finding(
            code="single-device",
            text="Only one device was measured: there is no layout to compare.",
            remedy="Name more with --set devices=….",
        )


def _compared(
    case: Case, devices: int, ran: Sequence[Group[Key]], *, card: bool
) -> Iterator[Finding]:
    best, noise = ran[0], caveats(*ran)
    rate, mfu = case.rate(best), best.median_of("mfu_percent")
    assert rate is not None
    used = f", MFU {mfu:.1f} %" if mfu is not None else ""
    where = f"{case.name} on {format_devices(devices)}"
    yield Finding(
        code="fastest-layout",
        question="Which layout is fastest?" if card else None,
        text=f"{where}: {layout_name(best.key)} is fastest, {rate.value:,.0f} {rate.unit}{used}.",
        value=rate.value,
        unit=f"{rate.unit}: {layout_name(best.key)}",
        low=rate.low,
        high=rate.high,
        caveats=noise,
    )
    others = list(ran[1:])
    ratios = [ratio(_figure(case, g), _figure(case, best)) for g in others]
    for group, found, verdict in zip(others, ratios, verdicts(ratios), strict=True):
        words = f"reaches {format_ratio(found)} of {layout_name(best.key)}"
        if not verdict.sign:
            words = (
                f"is not significantly slower than {layout_name(best.key)}, {format_ratio(found)}"
            )
        why = _why(case, group, best) if verdict.sign else ""
        yield Finding(
            code="slower-layout",
            text=f"{where}: {layout_name(group.key)} {words}{f': {why}' if why else ''}.",
            value=100 * found.value,
            unit=f"%: {layout_name(group.key)}",
            caveats=noise,
        )
    expected = searched_layout(best.records[0])
    if expected is not None:
        plan = expected.plan
        yield Finding(
            code="forecast-layout",
            text=f"{where}: `predict --search` expects {plan.layout} with micro-batches of "
            f"{plan.micro_batch} to be fastest, {expected.tokens_per_s:,.0f} tokens/s by the "
            "datasheet.",
            value=expected.tokens_per_s,
            unit="tokens/s",
        )
    least = min(ran, key=lambda g: g.median_of("peak_memory_bytes") or math.inf)
    held = least.median_of("peak_memory_bytes")
    if held is not None and least is not best:
        own = best.median_of("peak_memory_bytes") or 0.0
        yield Finding(
            code="least-memory",
            text=f"{where}: {layout_name(least.key)} needs the least memory, "
            f"{held / _GIB:.2f} GiB per device; {layout_name(best.key)} needs {own / _GIB:.2f} "
            "GiB.",
            value=held / _GIB,
            unit="GiB",
        )


def _why(case: Case, group: Group[Key], best: Group[Key]) -> str:
    """What makes its step longer than the fastest's."""
    waited = group.median_of(pipeline.WAIT)
    if waited is not None:
        names = ("bubble of the schedule", "imbalance of the stages", "sending")
        found = [(group.median_of(p) or 0.0, n) for p, n in zip(pipeline.PARTS, names, strict=True)]
        words = ", ".join(f"{value:.1f} % {name}" for value, name in sorted(found, reverse=True))
        gradients = group.median_of(pipeline.GRADIENTS)
        more = f", and averages gradients for {gradients:.1f} %" if gradients else ""
        return f"a stage waits {waited:.1f} % of its step: {words}{more}"
    own, other = profiled_record(group), profiled_record(best)
    if own is None or other is None:
        return ""
    mine, theirs = mean_parts(own), mean_parts(other)
    more_s = {name: mine.get(name, 0.0) - theirs.get(name, 0.0) for name in {*mine, *theirs}}
    worst = max(more_s, key=lambda name: (more_s[name], name))
    if more_s[worst] <= 0:
        return ""
    step_s = math.fsum(mine.values())
    return (
        f"{worst.replace('_', ' ')} takes {1e3 * more_s[worst]:.3g} ms more of a step of "
        f"{1e3 * step_s:.3g} ms"
    )


def _value(case: Case, group: Group[Key]) -> float:
    return _figure(case, group).value


def _figure(case: Case, group: Group[Key]) -> Figure:
    figure = case.rate(group)
    assert figure is not None
    return figure


def _table(case: Case, records: Sequence[RunRecord]) -> Table:
    unit = "tokens/s" if case.tokens else throughput_unit(records)
    columns = (
        Column(name="layout"),
        Column(name="devices"),
        Column(name="throughput", unit=unit),
        Column(name="per device", unit=unit),
        Column(name="step", unit="ms"),
        Column(name="MFU", unit="%"),
        Column(name="communication or wait", unit="%"),
        Column(name="straggler wait", unit="%"),
        Column(name="forecast", unit=unit),
        Column(name="datasheet", unit=unit),
        Column(name="memory", unit="GiB"),
        Column(name="memory, forecast", unit="GiB"),
    )
    rows = tuple(_row(case, group) for group in case.groups)
    return Table(title=f"Layouts of {case.name}", columns=columns, rows=rows)


def _row(case: Case, group: Group[Key]) -> tuple[Cell, ...]:
    devices = group.key[0]
    forecast = memory_forecast(group.records[0], case.network)
    needs = cell_or_dash(None if forecast is None else forecast.total_bytes / _GIB)
    head = (Cell(text=layout_name(group.key), run_id=group.run_id), Cell(value=devices))
    times = case.tokens or 1
    expected = rate_forecast(group.records[0], case.one, case.network)
    sheet = datasheet_forecast(group.records[0])
    forecasts = (
        cell_or_dash(None if expected is None else times * expected),
        cell_or_dash(None if sheet is None else times * sheet.samples_per_s),
    )
    rate = case.rate(group)
    if rate is None:
        return (*head, *[group.cell(None)] * 6, *forecasts, group.cell(None), needs)
    mfu, memory = group.median_of("mfu_percent"), group.median_of("peak_memory_bytes")
    exposed, straggling = waits(group)
    return (
        *head,
        group.cell(rate),
        group.cell(rate.scaled(1 / devices, rate.unit)),
        group.cell(group.step_ms and group.step_ms.scaled(devices, "ms")),
        Cell(text="–") if mfu is None else share_cell(mfu, group.run_id),
        cell_or_dash(exposed, group.run_id),
        cell_or_dash(straggling, group.run_id),
        *forecasts,
        cell_or_dash(None if memory is None else memory / _GIB, group.run_id),
        needs,
    )


def waits(group: Group[Key]) -> tuple[float | None, float | None]:
    """Percent of the step of unhidden communication and of waiting for the slowest rank; of a
    pipeline, of all waits of a stage and None."""
    waited = group.median_of(pipeline.WAIT)
    if waited is not None:
        return waited + (group.median_of(pipeline.GRADIENTS) or 0.0), None
    record = profiled_record(group)
    if record is None or group.key[0] == 1:
        return None, None
    found = mean_parts(record)
    step_s = math.fsum(found.values())
    exposed, straggling = found.get(COMMUNICATION, 0.0), found.get(STRAGGLER)
    return 100 * exposed / step_s, None if straggling is None else 100 * straggling / step_s


def _memory_table(case: Case) -> Iterator[Table]:
    """Memory by kind, measured and forecast, of the device that needs most."""
    rows = [row for group in case.groups if (row := _memory_row(case, group)) is not None]
    if not rows:
        return
    columns = (
        Column(name="layout"),
        Column(name="devices"),
        *(
            Column(name=f"{name}{which}", unit="GiB")
            for name in ("weights", "gradients", "optimizer state", "activations and others")
            for which in ("", ", forecast")
        ),
        Column(name="fragmentation", unit="GiB"),
        Column(name="total", unit="GiB"),
        Column(name="total, forecast", unit="GiB"),
        Column(name="forecast error", unit="%"),
    )
    title = f"Memory of a device by kind, {case.name}"
    yield Table(title=title, columns=columns, rows=tuple(rows))


def _memory_row(case: Case, group: Group[Key]) -> tuple[Cell, ...] | None:
    peak = group.median_of("peak_memory_bytes")
    found = memory_forecast(group.records[0], case.network)
    if peak is None or found is None or group.median_of("memory_weights_bytes") is None:
        return None
    measured = [group.median_of(f"memory_{kind}_bytes") for kind in KINDS]
    expected = memory_by_kind(group.records[0], case.network, found)
    lost = group.median_of("memory_fragmentation_bytes")
    cells = [
        cell_or_dash(None if value is None else value / _GIB, group.run_id)
        for pair in zip(measured, expected, strict=True)
        for value in pair
    ]
    return (
        Cell(text=layout_name(group.key), run_id=group.run_id),
        Cell(value=group.key[0]),
        *cells,
        cell_or_dash(None if lost is None else lost / _GIB, group.run_id),
        Cell(value=peak / _GIB, run_id=group.run_id),
        Cell(value=found.total_bytes / _GIB),
        Cell(value=100 * (found.total_bytes / peak - 1)),
    )
