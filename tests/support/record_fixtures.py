"""Scripted records: what a plan is sent and an answer reads, without running anything."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cubemesh.experiments.core.experiment import Plan
from cubemesh.schema import (
    Ceiling,
    Cpu,
    Curve,
    Figure,
    Machine,
    Memory,
    Outcome,
    RunKey,
    RunRecord,
    RunSpec,
    Software,
    Status,
    Train,
    TrainSteps,
    Window,
)

MACHINE = Machine(
    hostname="bench",
    cpu=Cpu(model="Model T", architecture="x86_64", usable_cores=2),
    memory=Memory(total_bytes=8 << 30, available_bytes=6 << 30),
    software=Software(python="3.11", system="Linux"),
)


def record_of(
    spec: RunSpec,
    *,
    step_s: float = 0.01,
    spread: float = 0.01,
    status: Status = Status.OK,
    message: str = "",
    accuracy: float | None = None,
    rate: float = 1e11,
    gpu_percent: float | None = None,
) -> RunRecord:
    """A record of `spec` in which every step takes `step_s`, give or take `spread`."""
    samples = spec.batch_per_device or 1
    windows: tuple[Window, ...] = ()
    figures: dict[str, Figure] = {}
    curves: tuple[Curve, ...] = ()
    if status is Status.OK:
        windows = tuple(
            Window(
                start_s=float(i),
                elapsed_s=step_s * 10 * (1 + spread * (-1) ** i),
                steps=10,
                samples=10 * samples,
            )
            for i in range(12)
        )
        value = samples / step_s
        figures = {
            "throughput_per_s": Figure(
                value=value,
                unit="samples/s",
                low=value * (1 - spread),
                high=value * (1 + spread),
                n=12,
            ),
            "step_s": Figure(value=step_s, unit="s", n=12),
            "wall_s": Figure(value=12.0, unit="s"),
            "peak_memory_bytes": Figure(value=float(samples << 20), unit="byte"),
        }
        if gpu_percent is not None:
            figures["gpu_utilization_percent"] = Figure(value=gpu_percent, unit="%")
            seconds = (0.5, 1.0, 1.5)
            curves = (
                Curve(
                    name="gpu_utilization_percent",
                    x_name="seconds",
                    x=seconds,
                    y=(gpu_percent,) * len(seconds),
                ),
            )
        if isinstance(spec.work, Ceiling):
            figures = {"rate_flops_per_s": Figure(value=rate, unit="FLOP/s")}
        if isinstance(spec.work, Train) and accuracy is not None:
            figures["accuracy"] = Figure(
                value=accuracy, unit="", low=accuracy - 0.05, high=accuracy + 0.05, n=360
            )
            figures["validation_loss"] = Figure(value=1 - accuracy, unit="")
            epochs = tuple(float(e) for e in range(1, spec.work.epochs + 1))
            rising = tuple(accuracy * e / len(epochs) for e in epochs)
            curves = (Curve(name="validation_accuracy", x_name="epoch", x=epochs, y=rising),)
    return RunRecord(
        run_id=f"{spec.spec_id[:8]}-{status}",
        spec=spec,
        key=RunKey(
            spec_id=spec.spec_id, machine_id="machine", software_id="software", code_version="code"
        ),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=12.0,
        outcome=Outcome(status=status, message=message),
        windows=windows,
        figures=figures,
        curves=curves,
    )


def play(plan: Plan, make: Callable[[RunSpec], RunRecord]) -> tuple[list[RunSpec], list[RunRecord]]:
    """Drive a plan to its end with scripted records; what it asked and what it was sent."""
    asked: list[RunSpec] = []
    sent: list[RunRecord] = []
    try:
        specs: Sequence[RunSpec] = next(plan)
        while True:
            records = [make(spec) for spec in specs]
            asked += specs
            sent += records
            specs = plan.send(records)
    except StopIteration:
        return asked, sent


@pytest.fixture
def machine() -> Machine:
    return MACHINE


@pytest.fixture(name="record_of")
def record_of_fixture() -> Callable[..., RunRecord]:
    return record_of


@pytest.fixture(name="play")
def play_fixture() -> Callable[..., tuple[list[RunSpec], list[RunRecord]]]:
    return play


@pytest.fixture
def steps() -> Callable[..., tuple[RunRecord, ...]]:
    """Records of a network whose steps at minibatch b take `step_s[b]` seconds."""

    def timed(network: str, step_s: dict[int, float], **more: Any) -> tuple[RunRecord, ...]:
        return tuple(
            record_of(
                RunSpec(work=TrainSteps(network=network, batch_per_device=b)), step_s=t, **more
            )
            for b, t in step_s.items()
        )

    return timed
