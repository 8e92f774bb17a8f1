"""A machine, runs and answers made up to look like real ones; drawn with a fixed seed."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.schema import (
    Answer,
    Axis,
    Breakdown,
    Budget,
    Cache,
    Cell,
    Chart,
    Column,
    Cpu,
    Curve,
    Figure,
    Finding,
    Gpu,
    GpuLink,
    Line,
    Machine,
    Memory,
    Outcome,
    Part,
    Phase,
    Point,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Series,
    Software,
    Status,
    Table,
    TimeRow,
    Train,
    TrainSteps,
    Unknown,
    Warning,
    Window,
    warn,
)

STEP_S = {8: 0.0215, 16: 0.0233, 32: 0.0278, 64: 0.0369, 128: 0.0590, 256: 0.1171}
ATTACK = "</script><img src=x onerror=alert(1)>"
STARTED = "2026-11-20T14:05:09+00:00"


@dataclass(frozen=True, kw_only=True)
class Sample:
    machine: Machine
    answers: tuple[Answer, ...]
    records: dict[str, RunRecord]
    series: dict[str, tuple[Series, ...]]


def machine(gpus: int = 0) -> Machine:
    return Machine(
        hostname="node-17",
        cpu=Cpu(
            model="AMD EPYC 9965",
            vendor="AuthenticAMD",
            architecture="x86_64",
            sockets=1,
            physical_cores=2,
            logical_cores=4,
            affinity_cores=4,
            cgroup_cores=2.0,
            usable_cores=2,
            instruction_sets=("avx2", "fma", "avx512f", "avx512_bf16"),
            caches=(
                Cache(level=1, kind="data", size_bytes=48 * 1024, instances=2),
                Cache(level=2, kind="unified", size_bytes=1024**2, instances=2),
                Cache(level=3, kind="unified", size_bytes=32 * 1024**2, instances=1),
            ),
        ),
        memory=Memory(
            total_bytes=30 * 1024**3, available_bytes=22 * 1024**3, cgroup_limit_bytes=24 * 1024**3
        ),
        gpus=tuple(
            Gpu(
                index=i,
                name="NVIDIA H200",
                uuid=f"GPU-{i}",
                memory_bytes=141 * 1000**3,
                compute_capability="9.0",
                sm_clock_max_mhz=1980,
                power_limit_watts=700.0,
                pcie_generation=5,
                pcie_width=16,
                nvlinks=18,
            )
            for i in range(gpus)
        ),
        gpu_links=tuple(
            GpuLink(first=a, second=b, kind="nvlink", links=18)
            for a in range(gpus)
            for b in range(a + 1, gpus)
        ),
        software=Software(
            python="3.12.4", system="Linux 6.8", packages={"torch": "2.13.0", "numpy": "2.4.6"}
        ),
        virtualization="kvm",
        unknown=(Unknown(what="highest clock", why="the hypervisor hides the frequency driver"),),
    )


def taken_apart(batch: int) -> RunRecord:
    """A run with an attribution, a fifth of its step launch gaps."""
    ms = {"compute": 16.0, "input_stall": 0.1, "launch_gaps": 4.3, "host": 0.9, "unattributed": 0.2}
    layers = tuple(TimeRow(name=f"conv{i}", seconds=(20 - i) / 1e4, calls=3) for i in range(12))
    return dataclasses.replace(
        record(batch),
        parts=tuple(Part(name=n, seconds=v / 1e3, method="made up") for n, v in ms.items()),
        breakdowns=(Breakdown(name="layer", rows=layers, method="made up"),),
        artifacts={"trace": "/home/a/results-files/1/trace.json"},
    )


def record(
    batch: int,
    *,
    network: str = "little-cnn",
    outcome: Outcome | None = None,
    warnings: tuple[Warning, ...] = (),
    step_s: float | None = None,
) -> RunRecord:
    spec = RunSpec(
        work=TrainSteps(network=network, batch_per_device=batch, data="digits"),
        budget=Budget(seconds=1.0),
    )
    outcome = outcome or Outcome(status=Status.OK)
    draw = random.Random(batch)
    windows: list[Window] = []
    figures: dict[str, Figure] = {}
    start = 3.1
    if outcome.ok:
        typical = step_s or STEP_S[batch]
        for i in range(18):
            phase = "measure" if i > 3 else "warm-up"
            slow = 1.5 / (i + 1) if phase == "warm-up" else 0.0
            elapsed = 5 * typical * (1 + slow + 0.012 * draw.gauss(0, 1) + 0.06 * (i == 11))
            windows.append(
                Window(phase=phase, start_s=start, elapsed_s=elapsed, steps=5, samples=5 * batch)
            )
            start += elapsed
        speed = batch / typical
        figures = {
            "throughput_per_s": Figure(
                value=speed, unit="samples/s", low=speed * 0.9935, high=speed * 1.0061, n=14
            ),
            "step_s": Figure(value=typical, unit="s", n=14),
            "peak_memory_bytes": Figure(value=0.31e9 + 5.1e6 * batch, unit="bytes"),
            "rate_flops_per_s": Figure(value=speed * 9.1e7, unit="FLOP/s"),
            "projected_90_epochs_days": Figure(value=90 * 1.28e6 / speed / 86400, unit="days"),
        }
    phases = (
        Phase(name="import", start_s=0.0, elapsed_s=0.82),
        Phase(name="build", start_s=0.82, elapsed_s=0.11),
        Phase(name="warm-up", start_s=0.93, elapsed_s=1.9),
        Phase(name="measure", start_s=2.83, elapsed_s=1.4 + batch / 90),
    )
    return RunRecord(
        run_id=f"{batch:04x}{'c' if network == 'little-cnn' else 'e'}9d2b7a1",
        spec=spec,
        key=RunKey(
            spec_id=spec.spec_id,
            machine_id=machine().machine_id,
            software_id="5f3a91c20b7d4e68",
            code_version="0.1.0",
        ),
        started_utc=STARTED,
        elapsed_s=4.4 + batch / 90,
        outcome=outcome,
        ranks=(Rank(rank=0, host="node-17", device="cpu", outcome=outcome, threads=2),),
        windows=tuple(windows),
        phases=phases if outcome.ok else phases[:2],
        figures=figures,
        series=("cpu_utilization_percent", "resident_bytes"),
        warnings=warnings,
    )


def series(batch: int) -> tuple[Series, ...]:
    draw = random.Random(batch + 1)
    times = tuple(i * 0.1 for i in range(60))
    busy = tuple(min(100.0, 40 + 58 * (1 - math.exp(-t)) + draw.gauss(0, 2)) for t in times)
    resident = tuple(2.1e8 + 1.1e8 * (1 - math.exp(-2 * t)) + 1e6 * batch for t in times)
    return (
        Series(name="cpu_utilization_percent", times_s=times, values=busy),
        Series(name="resident_bytes", times_s=times, values=resident),
    )


OOM = Outcome(
    status=Status.OOM,
    message="out of memory: needs 27 GiB, 24 here; 2,048 fits",
    facts={"forecast_bytes": 27 * 1024**3, "limit_bytes": 24 * 1024**3},
)
BUSY = warn(
    "busy-host",
    "Other processes used 8 % of these cores during batch size 64.",
    "Run it again on a quiet machine.",
)
FEW = warn("few-windows", "Batch size 256 has 7 windows.", "Give it longer: --set seconds=10.")


def minibatch_answer(records: Sequence[RunRecord]) -> Answer:
    points, rows = [], []
    for r in records:
        batch = r.spec.batch_per_device
        assert batch is not None
        if not r.ok:
            reason = r.outcome.message
            points.append(Point(x=batch, reason=reason, run_id=r.run_id))
            gap = Cell(reason=reason, run_id=r.run_id)
            rows.append((Cell(value=batch), gap, gap, gap))
            continue
        speed = r.figures["throughput_per_s"]
        points.append(
            Point(x=batch, y=speed.value, low=speed.low, high=speed.high, run_id=r.run_id)
        )
        rows.append(
            (
                Cell(value=batch),
                Cell(value=speed.value, low=speed.low, high=speed.high, run_id=r.run_id),
                Cell(value=r.figures["step_s"].value),
                Cell(value=r.figures["peak_memory_bytes"].value),
            )
        )
    published = tuple(Point(x=x, y=y) for x, y in ((16, 480), (32, 890), (64, 1350)))
    return Answer(
        experiment="minibatch",
        question="how large a batch size is worth it?",
        title="LittleCNN by batch size",
        findings=(
            Finding(
                code="throughput",
                text="This machine trains LittleCNN at 2,170 images/s. Below batch size 32 it "
                "loses a third of every step to launching work.",
                question="How fast?",
                value=2169.5,
                unit="images/s",
                low=2155.4,
                high=2182.7,
                remedy="Use batch size 128: 5.8 times batch size 8.",
            ),
            Finding(
                code="throughput-knee",
                text="Throughput stops growing at batch size 128.",
                question="Where does it stop growing?",
                value=128,
                unit="images a step",
                remedy="Larger batch sizes only cost memory.",
            ),
            Finding(
                code="published-comparison",
                text="From 16 to 64 it grows 2.5 times; NVIDIA reports 2.8 times on a V100.",
            ),
        ),
        tables=(
            Table(
                title="",
                columns=(
                    Column(name="batch size"),
                    Column(name="images/s", unit="images/s"),
                    Column(name="step", unit="s"),
                    Column(name="memory", unit="bytes", digits=2),
                ),
                rows=tuple(rows),
            ),
        ),
        charts=(
            Chart(
                name="throughput-by-minibatch",
                title="Throughput by batch size",
                kind="line",
                x=Axis(name="batch size", scale="log2"),
                y=Axis(name="throughput", unit="images/s"),
                lines=(
                    Line(name="this machine", points=tuple(points)),
                    Line(
                        name="NVIDIA DGX-1 best practices, scaled",
                        points=published,
                        role="published",
                    ),
                ),
            ),
        ),
        warnings=(BUSY, FEW),
        run_ids=tuple(r.run_id for r in records),
        notes=("Reduced: 14 windows of 5 steps a point; --full takes 60.",),
    )


def accuracy_answer() -> Answer:
    batches = (16, 32, 64, 128, 256)
    accuracy = (0.972, 0.968, 0.955, 0.921, 0.874)
    return Answer(
        experiment="batch-accuracy",
        question="What does a larger batch size cost in accuracy?",
        title="Accuracy after 5 epochs, and each system's speed",
        findings=(
            Finding(
                code="accuracy-cost",
                text="Accuracy falls from 97.2 % at batch size 16 to 87.4 % at 256.",
                question="What does speed cost?",
                value=9.8,
                unit="points of accuracy",
                remedy="Raise the learning rate with the batch size.",
            ),
        ),
        charts=(
            Chart(
                name="accuracy-by-minibatch",
                title="Validation accuracy",
                kind="line",
                x=Axis(name="batch size", scale="log2"),
                y=Axis(name="accuracy"),
                lines=(
                    Line(
                        name="digits",
                        points=tuple(
                            Point(x=b, y=a, low=a - 0.008, high=a + 0.006)
                            for b, a in zip(batches, accuracy, strict=True)
                        ),
                    ),
                    Line(
                        name="scaled learning rate",
                        points=(
                            *(
                                Point(x=b, y=a)
                                for b, a in zip(
                                    batches[:4], (0.971, 0.97, 0.966, 0.958), strict=True
                                )
                            ),
                            Point(x=256, reason="diverged: the loss was not a number at step 41"),
                        ),
                    ),
                    Line(
                        name="forecast",
                        role="forecast",
                        points=tuple(
                            Point(x=b, y=a, low=a - 0.02, high=a + 0.02)
                            for b, a in ((256, 0.94), (512, 0.92), (1024, 0.89))
                        ),
                    ),
                ),
            ),
            Chart(
                name="systems",
                title="Beside published systems",
                kind="bar",
                x=Axis(name="system", scale="category"),
                y=Axis(name="throughput", unit="images/s"),
                lines=(
                    Line(
                        name="measured",
                        points=(
                            Point(x="this machine, fp32", y=2169.5, low=2100, high=2230),
                            Point(x="this machine, bf16", reason="not supported: bf16 is emulated"),
                        ),
                    ),
                    Line(
                        name="published",
                        role="published",
                        points=(Point(x="DGX-1, 1 V100, batch size 1024", y=26000),),
                    ),
                ),
            ),
        ),
        tables=(
            Table(
                title="Systems",
                columns=(
                    Column(name="system"),
                    Column(name="throughput", unit="images/s"),
                    Column(name="source"),
                ),
                rows=(
                    (
                        Cell(text="this machine, fp32"),
                        Cell(value=2169.5, low=2100, high=2230),
                        Cell(text="measured, 14 windows"),
                    ),
                    (
                        Cell(text="this machine, bf16"),
                        Cell(reason="not supported: bf16 is emulated"),
                        Cell(text=""),
                    ),
                    (
                        Cell(text="DGX-1, 1 V100"),
                        Cell(value=26000),
                        Cell(text="NVIDIA DGX-1 best practices, figure 1"),
                    ),
                ),
            ),
        ),
        run_ids=(),
    )


def sample(gpus: int = 0) -> Sample:
    records = [
        record(b, warnings=(BUSY,) if b == 64 else (FEW,) if b == 256 else ()) for b in STEP_S
    ]
    records.append(record(4096, outcome=OOM))
    crashed = Outcome(
        status=Status.CRASHED,
        message="crashed: the worker ended with signal 11 (SIGSEGV)",
        origin="runner",
        facts={"signal": 11, "traceback": "Traceback (most recent call last):\n  <segfault>"},
    )
    extra = record(8, network="resnet-50", outcome=crashed)
    trained = training_record()
    by_id = {r.run_id: r for r in (*records, extra, trained)}
    return Sample(
        machine=machine(gpus),
        answers=(minibatch_answer(records), accuracy_answer()),
        records=by_id,
        series={r.run_id: series(r.spec.batch_per_device or 1) for r in records if r.ok},
    )


def training_record() -> RunRecord:
    spec = RunSpec(work=Train(network="little-cnn", batch_per_device=32, epochs=5, data="digits"))
    loss = tuple(2.3 * math.exp(-0.4 * i) + 0.1 for i in range(20))
    base = record(32)
    return RunRecord(
        run_id="77aa01bc42de",
        spec=spec,
        key=base.key,
        started_utc=STARTED,
        elapsed_s=14.2,
        outcome=Outcome(status=Status.OK),
        phases=base.phases,
        figures={
            "accuracy": Figure(value=0.968, unit=""),
            "validation_loss": Figure(value=0.123, unit=""),
        },
        curves=(
            Curve(name="loss", x_name="step", x=tuple(map(float, range(20))), y=loss),
            Curve(
                name="validation accuracy",
                x_name="epoch",
                x=(1.0, 2.0, 3.0),
                y=(0.7, 0.9, 0.968),
            ),
        ),
    )


def hostile() -> Sample:
    """Everything that can be named from outside is named to break out of a page."""
    bad = record(
        8,
        network=ATTACK,
        step_s=0.02,
        warnings=(Warning(code=ATTACK, cause=ATTACK, remedy=ATTACK),),
    )
    failed = record(
        16,
        network=ATTACK,
        outcome=Outcome(status=Status.CRASHED, message=ATTACK, facts={"traceback": ATTACK}),
    )
    line = Line(
        name=ATTACK, points=(Point(x=ATTACK, y=3.0, run_id=bad.run_id), Point(x="b", reason=ATTACK))
    )
    answer = Answer(
        experiment=ATTACK,
        question=ATTACK,
        title=ATTACK,
        findings=(
            Finding(
                code=ATTACK, text=ATTACK, question=ATTACK, value=1.0, unit=ATTACK, remedy=ATTACK
            ),
        ),
        tables=(
            Table(
                title=ATTACK,
                columns=(Column(name=ATTACK, unit=ATTACK),),
                rows=((Cell(text=ATTACK, run_id=bad.run_id),), (Cell(reason=ATTACK),)),
            ),
        ),
        charts=(
            Chart(
                name=ATTACK,
                title=ATTACK,
                kind="bar",
                x=Axis(name=ATTACK, scale="category"),
                y=Axis(name=ATTACK, unit=ATTACK),
                lines=(line, line),
            ),
        ),
        warnings=bad.warnings,
        notes=(ATTACK, "\x1b[2J\udc80"),
    )
    host = Machine(
        hostname=ATTACK,
        cpu=Cpu(model=ATTACK),
        memory=Memory(),
        software=Software(python=ATTACK, system=ATTACK, packages={ATTACK: ATTACK}),
        unknown=(Unknown(what=ATTACK, why=ATTACK),),
    )
    return Sample(
        machine=host,
        answers=(answer,),
        records={r.run_id: r for r in (bad, failed)},
        series={bad.run_id: (Series(name=ATTACK, times_s=(0.0, 1.0), values=(1.0, 2.0)),)},
    )


def failed() -> Sample:
    """A suite in which no run came to a figure."""
    records = [record(b, outcome=OOM) for b in STEP_S]
    answer = minibatch_answer(records)
    answer = dataclasses.replace(answer, findings=(), warnings=(), notes=())
    by_id = {r.run_id: r for r in records}
    return Sample(machine=machine(), answers=(answer,), records=by_id, series={})
