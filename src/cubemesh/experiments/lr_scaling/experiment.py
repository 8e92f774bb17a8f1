"""Learning rate scaling: validation loss by number of devices, with a constant and a scaled rate.

DGX-1 best practices [001], figures 5 and 6: LittleCNN on CIFAR-10 with batch size 128 on each of 1,
2, 4 and 8 GPUs, 30 epochs of RMSprop. With a constant rate of 1e-4 the validation loss grows with
the number of devices, because the same epochs are fewer updates; with N · 1e-4 on N devices (linear
scaling, Goyal et al. 2017) the curves roughly coincide. Both are shown here by epoch and by time.
The default data are the handwritten digits that cubemesh includes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import titled
from cubemesh.experiments.analysis.per_workload import per_workload, training_workload
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.lr_scaling import report
from cubemesh.experiments.scaling.design import PLACED, on_cpu, placement
from cubemesh.schema import Answer, ProgramSettings, RunRecord, RunSpec, Train
from cubemesh.schema.spec import Device
from cubemesh.schema.work import RateScaling

DEVICES = (1, 2, 4, 8)
CPU_DEVICES = (1, 2, 4)
EPOCHS = {Scale.QUICK: 4, Scale.DEFAULT: 15, Scale.FULL: report.PAPER_EPOCHS}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `lr-scaling` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; default: 1, 2, 4 and 8 as far as there are GPUs, on a CPU 1, 2 and 4,
    which share its cores if there are fewer."""
    batch_sizes: tuple[int, ...] = (report.PAPER_BATCH,)
    """Batch sizes per device; default: the paper's."""
    epochs: int | None = None
    """Epochs of each training; default: the paper's 30, on a CPU fewer without --full."""
    data: str = "digits"
    """Data set: digits, or cifar-10 with data_path."""
    learning_rate: float = 1e-4
    """Learning rate for one device; default: the paper's."""
    device: Device = "auto"
    """Kind of device: GPU (cuda) or group of cores (cpu)."""
    threads: tuple[int, ...] = (1,)
    """Cores of each device on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """One training on one device, and two on each larger number: constant and scaled rate."""
    scalings: tuple[RateScaling, ...] = ("none", "linear")
    scale = context.scale if on_cpu(settings.device, context) else Scale.FULL
    yield [
        RunSpec(
            work=Train(
                network=network,
                batch_per_device=batch,
                data=settings.data,
                epochs=settings.epochs or EPOCHS[scale],
                optimizer="rmsprop",
                learning_rate=settings.learning_rate,
                rate_scaling=scaling,
            ),
            placement=replace(
                placement(settings.device, threads, devices, context),
                oversubscribe=devices > 1,
            ),
            program=ProgramSettings(sync="all-reduce" if devices > 1 else "none"),
            budget=context.budget,
        )
        for network in dict.fromkeys(settings.networks)
        for batch in dict.fromkeys(settings.batch_sizes)
        for threads in dict.fromkeys(settings.threads)
        for scaling in scalings
        for devices in _counts(settings, context)
        if devices > 1 or scaling == "none"
    ]


def _counts(settings: Settings, context: Context) -> Sequence[int]:
    if settings.devices:
        return sorted(set(settings.devices))
    if on_cpu(settings.device, context):
        return CPU_DEVICES
    return [n for n in DEVICES if n <= len(context.machine.gpus)]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `lr-scaling`, by workload."""
    return per_workload(records, training_workload, lambda own: _answer(settings, own))


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    policies = report.policies(records)
    network = training_workload(records[0])[0] if records else settings.networks[0]
    title = f"{network} on {settings.data}: constant and scaled learning rate"
    return answer_of(
        EXPERIMENT,
        titled(title, records),
        records,
        findings=report.findings(policies),
        tables=report.tables(policies),
        charts=report.charts(policies, f"lr-scaling-{network}-{settings.data}"),
        warnings=report.reduced(records),
        notes=report.NOTES,
    )


EXPERIMENT = Experiment(
    name="lr-scaling",
    question="How must the learning rate scale with the number of devices?",
    settings=Settings,
    works=(Train,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "rate_scaling": "devices",
        **PLACED,
    },
    plan=plan,
    answer=answer,
    papers="[001], figures 5 and 6",
)
