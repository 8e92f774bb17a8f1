"""What must the learning rate do when the number of devices grows?

Document 001 figures 5 and 6: LittleCNN on CIFAR-10 with 128 samples on each of 1, 2, 4 and 8 GPUs,
30 epochs of RMSprop. With a constant rate of 1e-4 the validation loss is the higher the more
devices there are, for the same epochs are fewer updates; with N · 1e-4 on N devices (the linear
scaling of Goyal et al. 2017) the curves roughly coincide. Both are drawn here, by epoch and by
time. The default data are the handwritten digits cubemesh carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.groups import titled
from cubemesh.experiments.analysis.per_workload import per_workload, training_workload
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.lr_scaling import report as shown
from cubemesh.experiments.scaling.design import PLACED, DeviceSetting, on_cpu, placement
from cubemesh.schema import Answer, ProgramSettings, RunRecord, RunSpec, Train
from cubemesh.schema.spec import Device
from cubemesh.schema.work import RateScaling

RANKS = (1, 2, 4, 8)
CPU_RANKS = (1, 2, 4)
EPOCHS = {Scale.QUICK: 4, Scale.DEFAULT: 15, Scale.FULL: shown.DOCUMENT_EPOCHS}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `lr-scaling` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; none given is 1, 2, 4 and 8 as far as there are GPUs, on a CPU 1, 2
    and 4, which share its cores where there are fewer."""
    batch_sizes: tuple[int, ...] = (shown.DOCUMENT_BATCH,)
    """Batch sizes per device; default: the paper's."""
    epochs: int | None = None
    """Epochs of each training; none given is the document's 30, on a CPU fewer without --full."""
    data: str = "digits"
    """What is learned: digits, or cifar-10 with data_path."""
    learning_rate: float = 1e-4
    """The document's, of one device."""
    device: Device = "auto"
    """What a device is: a GPU (`cuda`) or a group of cores (`cpu`)."""
    threads: tuple[int, ...] = (1,)
    """Cores of each device on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """One training on one device, and two on each larger number: the rate as it is, and scaled."""
    scalings: tuple[RateScaling, ...] = ("none", "linear")
    yield [
        _spec(settings, context, devices, scaling, network, batch, threads)
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
    if on_cpu(settings, context):
        return CPU_RANKS
    return [n for n in RANKS if n <= len(context.machine.gpus)]


def _spec(
    settings: Settings,
    context: Context,
    devices: int,
    scaling: RateScaling,
    network: str,
    batch: int,
    threads: int,
) -> RunSpec:
    epochs = EPOCHS[context.scale if on_cpu(settings, context) else Scale.FULL]
    return RunSpec(
        work=Train(
            network=network,
            batch_per_device=batch,
            data=settings.data,
            epochs=settings.epochs or epochs,
            optimizer="rmsprop",
            learning_rate=settings.learning_rate,
            rate_scaling=scaling,
        ),
        placement=replace(
            placement(DeviceSetting(settings.device, threads), devices, context),
            oversubscribe=devices > 1,
        ),
        program=ProgramSettings(sync="all-reduce" if devices > 1 else "none"),
        budget=context.budget,
    )


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `lr-scaling`, by workload."""
    return per_workload(records, training_workload, lambda own: _answer(settings, own))


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    policies = shown.policies(records)
    network = training_workload(records[0])[0] if records else settings.networks[0]
    title = f"{network} on {settings.data}: constant and scaled learning rate"
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(title, records),
        findings=tuple(shown.findings(policies)),
        tables=shown.tables(policies),
        charts=tuple(shown.charts(policies, f"lr-scaling-{network}-{settings.data}")),
        warnings=(*shown.reduced(records), *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=shown.NOTES,
    )


EXPERIMENT = Experiment(
    name="lr-scaling",
    question="What must the learning rate do when the number of devices grows?",
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
    documents="001 figures 5 and 6",
)
