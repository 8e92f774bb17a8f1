"""Layouts: how devices divide the training of one network, each measured and forecast.

A layout is a strategy with its mesh. All layouts train the same network with the same global batch
on the same devices: data parallel, the three stages of sharded data parallelism (ZeRO), tensor
parallel, context parallel, pipelines, and these three with data parallelism. One device with its
share of the batch is the baseline.

`LAYOUTS` is the table: a new strategy is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core import cpu_defaults
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.layouts import report
from cubemesh.experiments.scaling.design import (
    PLACED,
    MultiDeviceSettings,
    device_counts,
    is_small,
    on_cpu,
    placement,
)
from cubemesh.frameworks import entry
from cubemesh.networks import entry as network_entry
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import Answer, ProgramSettings, RunRecord, RunSpec, TrainSteps
from cubemesh.schema.spec import Device

NETWORK, SMALL_NETWORK = "gpt2", "little-cnn"
BATCH, SMALL_BATCH = 8, 64
Meshes = Callable[[int], Iterator[Mapping[str, Any]]]
"""Devices → the program settings of each mesh of a strategy."""


def one_mesh(devices: int) -> Iterator[Mapping[str, Any]]:
    """All devices."""
    yield {}


def data_by_stages(devices: int) -> Iterator[Mapping[str, Any]]:
    """Each division into several pipelines of several stages."""
    for stages in range(2, devices // 2 + 1):
        if devices % stages == 0:
            yield {"pipeline_stages": stages}


def data_by_tensor(devices: int) -> Iterator[Mapping[str, Any]]:
    """Each division into several groups of several devices that divide a layer."""
    for size in range(2, devices // 2 + 1):
        if devices % size == 0:
            yield {"tensor_parallel_size": size}


def data_by_context(devices: int) -> Iterator[Mapping[str, Any]]:
    """Each division into several groups of several devices that divide a sequence."""
    for size in range(2, devices // 2 + 1):
        if devices % size == 0:
            yield {"context_parallel_size": size}


class LayoutEntry(NamedTuple):
    """A line of the table."""

    sync: str
    """The strategy."""
    meshes: Meshes = one_mesh


LAYOUTS: dict[str, LayoutEntry] = {
    "data": LayoutEntry("all-reduce"),
    "zero-1": LayoutEntry("sharded-optimizer"),
    "zero-2": LayoutEntry("sharded-gradients"),
    "zero-3": LayoutEntry("fully-sharded"),
    "tensor": LayoutEntry("tensor-parallel"),
    "data-tensor": LayoutEntry("tensor-parallel", data_by_tensor),
    "context": LayoutEntry("context-parallel"),
    "data-context": LayoutEntry("context-parallel", data_by_context),
    "pipeline": LayoutEntry("pipeline"),
    "data-pipeline": LayoutEntry("hybrid", data_by_stages),
}
"""Name → strategy and meshes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `layouts` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train. Default: gpt2; on a CPU and with --quick little-cnn."""
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    """Layouts to measure: `data`, `zero-1` to `zero-3`, `tensor`, `data-tensor`, `context`,
    `data-context`, `pipeline`, `data-pipeline`."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; one is always measured. Default: the largest power of two that the
    machine has, at most 8; 2 with --quick."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes per device; a pipeline trains those of its stages together. Default: 8; 64 on a
    CPU and with --quick."""
    device: Device = "auto"
    """Kind of device: a GPU (`cuda`) or a group of cores (`cpu`)."""
    threads: int = 1
    """Cores per device on a CPU."""
    attribution: bool = True
    """Whether to profile the steps, to find the communication that nothing hides."""

    def __post_init__(self) -> None:
        for name in self.layouts:
            if name not in LAYOUTS:
                raise unknown_name("layout", name, LAYOUTS)
        if not self.layouts:
            raise UsageError("layouts= has no value: name one, such as layouts=data,zero-3.")
        if any(batch < 1 for batch in self.batch_sizes):
            raise UsageError("batch_sizes must be 1 or more.")
        self.several()

    def several(self) -> MultiDeviceSettings:
        """The settings of several devices, as other experiments have them."""
        return MultiDeviceSettings(
            devices=self.devices, device=self.device, threads=(self.threads,)
        )


def plan(settings: Settings, context: Context) -> Plan:
    """One device, then each layout on each number of devices."""
    counts = settings.devices or device_counts(settings.several(), context)[-1:]
    small = is_small(settings.device, context)
    networks = settings.networks or (SMALL_NETWORK if small else NETWORK,)
    batches = settings.batch_sizes or (SMALL_BATCH if small else BATCH,)
    yield [
        spec
        for network in dict.fromkeys(networks)
        for batch in dict.fromkeys(batches)
        for spec in _specs(settings, context, network, batch, sorted({*counts} - {1}))
    ]


def _specs(
    settings: Settings, context: Context, network: str, batch: int, counts: Sequence[int]
) -> Iterator[RunSpec]:
    yield _spec(settings, context, network, batch, 1, {})
    for devices in counts:
        for name in dict.fromkeys(settings.layouts):
            layout = LAYOUTS[name]
            for mesh in layout.meshes(devices):
                program = {"sync": layout.sync, **mesh}
                yield _spec(settings, context, network, batch, devices, program)


def _spec(
    settings: Settings,
    context: Context,
    network: str,
    batch: int,
    devices: int,
    program: Mapping[str, Any],
) -> RunSpec:
    gpu = not on_cpu(settings.device, context)
    sequences = network_entry(network).samples == "sequences"
    settled = ProgramSettings(
        precision="bf16" if gpu else "fp32", layout=entry("pytorch").layout, **program
    )
    profiled = settings.attribution and strategy(settled.sync).profiled
    return RunSpec(
        work=TrainSteps(
            network=network,
            batch_per_device=batch,
            image_size=None if sequences else cpu_defaults.image_size(network, context),
            optimizer="adamw",
            learning_rate=1e-4,
        ),
        placement=placement(settings.device, settings.threads, devices, context),
        program=settled,
        budget=replace(context.budget, attribution=profiled),
    )


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """The fastest layout and why the others lose, from the records of one `layouts`."""
    return report.layouts_answer(EXPERIMENT, records)


EXPERIMENT = Experiment(
    name="layouts",
    question="Which way of dividing a training over these devices is fastest, and why?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "networks",
        "sync": "layouts",
        "pipeline_stages": "layouts",
        "tensor_parallel_size": "layouts",
        "context_parallel_size": "layouts",
        "batch_per_device": "batch_sizes",
        "trace": "attribution",
        **PLACED,
    },
    plan=plan,
    answer=answer,
)
