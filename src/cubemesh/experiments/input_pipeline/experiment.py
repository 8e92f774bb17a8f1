"""Input pipeline benchmark: throughput of each stage from disk to device, and the bottleneck.

Each stage is measured separately: reading files from the disk, decoding images in memory (with one
thread, with one per core, on the device), copying a batch to the device. They are compared with
training on the same images from the disk, from the page cache (decoded on the host, or on the
device), cached decoded in memory, on synthetic images from the host, and with one batch resident on
the device: the throughput without any input cost. The slowest is the bottleneck; the cores and the
disk bandwidth that the device needs follow from the rates.

Stages overlap in training, so its throughput is at most that of the slowest stage; on a CPU,
decoding and training share the cores, and it is lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from cubemesh.data.images.generated_jpegs import NAME as GENERATED
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import group_by, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.input_pipeline.report import (
    BY_DEVICE,
    COPY,
    DECODE,
    DECODE_ONE,
    DECODED,
    DEVICE,
    DISK,
    MEMORY,
    MEMORY_BY_DEVICE,
    READ,
    SYNTHETIC,
    charts,
    findings,
    notes,
    tables,
)
from cubemesh.schema import (
    Answer,
    Input,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
)
from cubemesh.schema.work import Stage

Part = Literal[
    "read",
    "decode-one",
    "decode",
    "decode-by-device",
    "copy",
    "disk",
    "page-cache",
    "page-cache-by-device",
    "decoded",
    "synthetic",
    "device",
]
NOT_QUICK = (MEMORY, MEMORY_BY_DEVICE, SYNTHETIC)
GPU_ONLY = (BY_DEVICE, MEMORY_BY_DEVICE)
"""Measured on a CPU only if requested: there the device is the host."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `input-pipeline` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train; default: resnet-50 on a GPU, little-cnn on a CPU."""
    image_size: int | None = None
    """Image size in pixels; default: the network's own."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: 64 on a GPU, 16 on a CPU."""
    parts: tuple[Part, ...] = ()
    """Stages and trainings to measure; default: all (decoding on the device only on a GPU), with
    --quick all but page-cache, page-cache-by-device and synthetic."""
    data_path: str | None = None
    """Folder of images or tar shards; default: 1,024 generated images."""


def plan(settings: Settings, context: Context) -> Plan:
    """The stages and trainings; reading from the disk comes before what fills the page cache."""
    networks = settings.networks or ("resnet-50" if context.has_gpu else "little-cnn",)
    batches = settings.batch_sizes or (64 if context.has_gpu else 16,)
    for network, batch in product(dict.fromkeys(networks), dict.fromkeys(batches)):
        yield from _plan_of(settings, context, network, batch)


def _plan_of(settings: Settings, context: Context, network: str, batch: int) -> Plan:
    data = "images" if settings.data_path else GENERATED
    common = {"network": network, "image_size": settings.image_size, "batch_per_device": batch}
    files = {**common, "data": data, "data_path": settings.data_path}

    def stage(name: Stage, **program: object) -> RunSpec:
        return RunSpec(
            work=Input(stage=name, **files),  # type: ignore[arg-type]
            program=ProgramSettings(**program),  # type: ignore[arg-type]
            budget=context.budget,
        )

    def training(fed: Mapping[str, object], **program: object) -> RunSpec:
        return RunSpec(
            work=TrainSteps(**fed),  # type: ignore[arg-type]
            program=ProgramSettings(**program),  # type: ignore[arg-type]
            budget=context.budget,
        )

    asked = {
        READ: stage("read", drop_page_cache=True),
        DISK: training(files, drop_page_cache=True),
        DECODE_ONE: stage("decode", input_threads=1),
        DECODE: stage("decode"),
        BY_DEVICE: stage("decode", decode_location="device"),
        COPY: stage("copy"),
        MEMORY: training(files),
        MEMORY_BY_DEVICE: training(files, decode_location="device"),
        DECODED: training(files, cache_decoded=True),
        SYNTHETIC: training(common),
        DEVICE: training(common, data_location="device"),
    }
    quick = context.scale is Scale.QUICK
    left_out = {*(NOT_QUICK if quick else ()), *(() if context.has_gpu else GPU_ONLY)}
    wanted = settings.parts or [name for name in asked if name not in left_out]
    yield [spec for name, spec in asked.items() if name in wanted]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `input-pipeline`, by workload."""
    return per_workload(records, _workload, _answer)


def _workload(record: RunRecord) -> tuple[str, str]:
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    return work.network, f"batch size {work.batch_per_device}"


def _answer(records: Sequence[RunRecord]) -> Answer:
    groups = {g.key: g for g in group_by(records, _key)}
    networks = {r.spec.work.network for r in records if isinstance(r.spec.work, NetworkWork)}
    batches = {b for r in records if (b := r.spec.batch_per_device)}
    title = f"Input of {', '.join(sorted(networks))}, batch size {', '.join(map(str, batches))}"
    return answer_of(
        EXPERIMENT,
        titled(title, records),
        records,
        findings=findings(groups),
        tables=tables(groups),
        charts=charts(groups),
        notes=notes(groups),
    )


def _key(record: RunRecord) -> str:
    work, program = record.spec.work, record.spec.program
    by_device = program.decode_location == "device"
    if isinstance(work, Input):
        if by_device:
            return BY_DEVICE
        one = work.stage == "decode" and program.input_threads == 1
        return DECODE_ONE if one else work.stage
    assert isinstance(work, TrainSteps)
    if work.data == "synthetic":
        return DEVICE if program.data_location == "device" else SYNTHETIC
    if program.cache_decoded:
        return DECODED
    if by_device:
        return MEMORY_BY_DEVICE
    return DISK if program.drop_page_cache else MEMORY


EXPERIMENT = Experiment(
    name="input-pipeline",
    question="Is training input-bound, and which stage is the bottleneck?",
    settings=Settings,
    works=(Input, TrainSteps),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "data": "data_path",
        "stage": "parts",
        "cache_decoded": "parts",
        "drop_page_cache": "parts",
        "decode_location": "parts",
        "data_location": "parts",
        "input_threads": "parts",
    },
    plan=plan,
    answer=answer,
    papers="[002], sections 2.1 and 5.3; [004]",
)
