"""Small records and answers for tests of the audit, and a set of them in which everything fits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cubemesh.audit.evidence import Evidence
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Input,
    Line,
    Outcome,
    Part,
    Placement,
    Point,
    ProgramSettings,
    Rank,
    RunRecord,
    RunSpec,
    Status,
    Table,
    TrainSteps,
)
from record_fixtures import record_of

BF16 = ProgramSettings(precision="bf16", layout="nhwc", framework="pytorch-captured")
RESIDENT = ProgramSettings(data_location="device")


def run(
    name: str = "a",
    network: str = "resnet-50",
    batch: int = 16,
    rate: float = 1000.0,
    *,
    device: str = "",
    figures: dict[str, Figure] | None = None,
    parts: dict[str, float] | None = None,
    program: ProgramSettings | None = None,
    devices: int = 1,
    **more: Any,
) -> RunRecord:
    """A run of training at `rate` samples/s; `parts` are fractions of its step."""
    spec = RunSpec(
        work=TrainSteps(network=network, batch_per_device=batch, **more),
        program=program or ProgramSettings(),
        placement=Placement(devices=devices),
    )
    record = record_of(spec, step_s=batch * devices / rate)
    windows = tuple(replace(w, samples=w.samples * devices) for w in record.windows)
    throughput = replace(
        record.figures["throughput_per_s"], value=rate, low=0.98 * rate, high=1.02 * rate
    )
    step_s = batch * devices / rate
    return replace(
        record,
        run_id=name,
        windows=windows,
        ranks=(rank(device),) if device else (),
        figures={**record.figures, "throughput_per_s": throughput, **(figures or {})},
        parts=tuple(Part(name=n, seconds=s * step_s, method="") for n, s in (parts or {}).items()),
    )


def rank(device: str) -> Rank:
    return Rank(
        rank=0,
        host="bench",
        device="cuda:0",
        device_name=device,
        outcome=Outcome(status=Status.OK),
    )


def stage(name: str, kind: Any, rate: float, **more: Any) -> RunRecord:
    """A stage of the input of `run()` on files, in images/s."""
    work = Input(
        network="resnet-50", batch_per_device=16, stage=kind, data="images", data_path="/d"
    )
    record = record_of(RunSpec(work=work, program=ProgramSettings(**more)), step_s=16 / rate)
    figure = replace(record.figures["throughput_per_s"], unit="images/s")
    return replace(record, run_id=name, figures={**record.figures, "throughput_per_s": figure})


def table(*rows: Sequence[Cell], columns: Sequence[Column], title: str = "Rates") -> Table:
    return Table(title=title, columns=tuple(columns), rows=tuple(tuple(row) for row in rows))


def columns(*names: str) -> tuple[Column, ...]:
    """`throughput:samples/s` is a column with its unit."""
    return tuple(
        Column(name=name, unit=unit) for name, _, unit in (text.partition(":") for text in names)
    )


def answer(
    *records: RunRecord,
    findings: Sequence[Finding] = (),
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    title: str = "Planted",
) -> Evidence:
    found = Answer(
        experiment="planted",
        question="",
        title=title,
        findings=tuple(findings),
        tables=tuple(tables),
        charts=tuple(charts),
        run_ids=tuple(r.run_id for r in records),
    )
    return Evidence(found, records)


def bars(unit: str, values: dict[str, float], *, stacked: bool = False) -> Chart:
    return Chart(
        name="bars",
        title="Bars",
        kind="bar",
        x=Axis(name="step", scale="category"),
        y=Axis(name="share", unit=unit),
        lines=tuple(Line(name=n, points=(Point(x="one", y=y),)) for n, y in values.items()),
        stacked=stacked,
    )


RATES = columns("network", "batch size", "throughput:samples/s", "step:ms", "vs stock:×")
SCALING = columns("devices", "global batch size", "throughput:samples/s", "efficiency:%")
GOOD_PARTS = {"compute": 0.9, "launch_gaps": 0.08, "unattributed": 0.02}
BAD_PARTS = {"compute": 1.26, "launch_gaps": 0.01, "unattributed": -0.27}
NOTHING_LOST = Finding(code="largest-overhead", text="resnet-50: No bottleneck at batch size 16.")
NOT_BOUND = Finding(
    code="device-bottleneck",
    text="Not input-bound: the device is the bottleneck; 0 % of a step is input wait.",
)
FILES = {"data": "images", "data_path": "/d"}


def slow_files(value: float = 0.51) -> Finding:
    return Finding(
        code="input-cost",
        text=f"Training on files in the page cache is {value}× the speed of one batch on the "
        "device; 0 % of a step is input wait.",
        value=value,
        low=value - 0.02,
        high=value + 0.02,
        unit="× the speed",
    )


def published(*devices: str) -> Table:
    """Published rows of ResNet-50 on these devices."""
    names = ("device", "framework", "precision", "batch size", "throughput:samples/s")
    rows = [
        [
            Cell(text=d),
            Cell(text="PyTorch"),
            Cell(text="AMP"),
            Cell(text="64"),
            Cell(value=1300.0),
            Cell(text="–"),
            Cell(text="ResNet-50"),
            Cell(text="system"),
            Cell(text="source"),
        ]
        for d in devices
    ]
    more = columns(*names, "of peak:%", "network", "system", "source")
    return table(*rows, columns=more, title="Nearest published results")


def consistent() -> list[Evidence]:
    """Two answers in which everything fits."""
    a, b = run("a", parts=GOOD_PARTS), run("b", rate=2000.0, program=BF16)
    rows = table(
        [
            Cell(text="resnet-50", run_id="a"),
            Cell(text="16"),
            Cell(value=1000.0, run_id="a"),
            Cell(value=16.0),
            Cell(value=1.0),
        ],
        [
            Cell(text="resnet-50", run_id="b"),
            Cell(text="16"),
            Cell(value=2000.0, run_id="b"),
            Cell(value=8.0),
            Cell(value=2.0),
        ],
        columns=RATES,
    )
    fastest = Finding(
        code="fastest-settings",
        text="pytorch-captured, bf16, nhwc is 2.00× as fast as pytorch, fp32, nchw.",
        value=2.0,
        low=1.9,
        high=2.1,
        unit="× stock",
        sides=("b", "a"),
    )
    again = run("c", rate=1010.0)
    files = answer(
        run("d", rate=900.0, **FILES),
        run("e", rate=1000.0, program=RESIDENT),
        stage("f", "decode", 3000.0),
        findings=[
            Finding(code="host-contention", text="Slowed by its input: the cores are shared."),
            slow_files(),
        ],
        title="Input",
    )
    return [
        answer(
            a, b, findings=[fastest, NOTHING_LOST], tables=[rows], charts=[bars("%", {"a": 40.0})]
        ),
        answer(again, title="Again"),
        files,
    ]
