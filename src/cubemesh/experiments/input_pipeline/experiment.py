"""Input pipeline benchmark: throughput of each stage from disk to device, and the bottleneck.

Each stage is measured separately: reading files from the disk, decoding images in memory (with one
thread, with one per core, on the device), copying a batch to the device. They are compared with
training on the same images from the disk, from the page cache (decoded on the host, or on the
device), cached decoded in memory, on synthetic images from the host, and with one batch resident on
the device: the throughput without any input cost. The slowest is the bottleneck; the cores and the
disk bandwidth that the device needs follow from the rates.

Of data of the user's own the stages are taking samples (with one thread, and as a training does:
with one thread per core, or with the workers of a DataLoader), collating them, and copying.

Stages overlap in training, so its throughput is at most that of the slowest stage; on a CPU,
decoding and training share the cores, and it is lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from cubemesh.data.images.generated_jpegs import NAME as GENERATED
from cubemesh.data.own import is_own
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import group_by, titled
from cubemesh.experiments.analysis.per_workload import per_workload, training_workload
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.input_pipeline.report import Part, charts, findings, notes, tables
from cubemesh.schema import (
    Answer,
    Input,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
)
from cubemesh.schema.work import Stage

DECODED: tuple[Part, ...] = (
    *("read", "disk", "decode-one", "decode", "decode-by-device", "copy", "page-cache"),
    *("page-cache-by-device", "decoded", "synthetic", "device"),
)
"""Parts of photographs, in the order in which they are measured."""
OWN: tuple[Part, ...] = ("item-one", "item", "collate", "copy", "own", "synthetic", "device")
"""Parts of data of the user's own."""
NOT_QUICK = ("page-cache", "page-cache-by-device", "synthetic")
GPU_ONLY = ("decode-by-device", "page-cache-by-device")
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
    """Folder of images or tar shards, or URL of a prepared set; default: 1,024 generated images."""
    data: str | None = None
    """Data of your own: FILE.py:NAME or PACKAGE.MODULE:NAME."""

    def __post_init__(self) -> None:
        if self.data is not None and not is_own(self.data):
            raise UsageError(
                f"data={self.data}: input-pipeline measures photographs, which data_path names, or "
                "data of your own, FILE.py:NAME."
            )
        able = DECODED if self.data is None else OWN
        for part in self.parts:
            if part not in able:
                of = "photographs" if self.data is None else f"data={self.data}"
                raise UsageError(
                    f"parts={part} is not a part of {of}. Choose from {', '.join(able)}."
                )


def plan(settings: Settings, context: Context) -> Plan:
    """The stages and trainings; reading from the disk comes before what fills the page cache."""
    networks = settings.networks or ("resnet-50" if context.has_gpu else "little-cnn",)
    batches = settings.batch_sizes or (64 if context.has_gpu else 16,)
    for network, batch in product(dict.fromkeys(networks), dict.fromkeys(batches)):
        yield from _plan_of(settings, context, network, batch)


def _plan_of(settings: Settings, context: Context, network: str, batch: int) -> Plan:
    source = settings.data or ("images" if settings.data_path else GENERATED)
    common = {"network": network, "image_size": settings.image_size, "batch_per_device": batch}
    files = {**common, "data": source, "data_path": settings.data_path}

    def stage(name: Stage, **program: object) -> RunSpec:
        return RunSpec(
            work=Input(stage=name, **files),  # type: ignore[arg-type]
            program=ProgramSettings(**program),  # type: ignore[arg-type]
            budget=context.budget,
        )

    def training(data: Mapping[str, object], **program: object) -> RunSpec:
        return RunSpec(
            work=TrainSteps(**data),  # type: ignore[arg-type]
            program=ProgramSettings(**program),  # type: ignore[arg-type]
            budget=context.budget,
        )

    specs: dict[Part, RunSpec] = {
        "read": stage("read", drop_page_cache=True),
        "disk": training(files, drop_page_cache=True),
        "decode-one": stage("decode", input_threads=1),
        "decode": stage("decode"),
        "decode-by-device": stage("decode", decode_location="device"),
        "copy": stage("copy"),
        "page-cache": training(files),
        "page-cache-by-device": training(files, decode_location="device"),
        "decoded": training(files, cache_decoded=True),
        "synthetic": training(common),
        "item-one": stage("item", input_threads=1),
        "item": stage("item"),
        "collate": stage("collate", input_threads=0),
        "own": training(files),
        "device": training(common, data_location="device"),
    }
    quick = context.scale is Scale.QUICK
    excluded = {*(NOT_QUICK if quick else ()), *(() if context.has_gpu else GPU_ONLY)}
    able = DECODED if settings.data is None else OWN
    wanted = settings.parts or [name for name in able if name not in excluded]
    yield [specs[name] for name in able if name in wanted]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `input-pipeline`, by workload."""
    return per_workload(records, training_workload, _answer)


def _answer(records: Sequence[RunRecord]) -> Answer:
    groups = {g.key: g for g in group_by(records, _key)}
    workload = f" of {', '.join(training_workload(records[0])[:2])}" if records else ""
    return answer_of(
        EXPERIMENT,
        titled(f"Input{workload}", records),
        records,
        findings=findings(groups),
        tables=tables(groups),
        charts=charts(groups),
        notes=notes(groups),
    )


def _key(record: RunRecord) -> Part:
    work, program = record.spec.work, record.spec.program
    by_device = program.decode_location == "device"
    if isinstance(work, Input):
        if by_device:
            return "decode-by-device"
        if program.input_threads == 1 and work.stage in ("decode", "item"):
            return "decode-one" if work.stage == "decode" else "item-one"
        return work.stage
    assert isinstance(work, TrainSteps)
    if work.data == "synthetic":
        return "device" if program.data_location == "device" else "synthetic"
    if work.own_data is not None:
        return "own"
    if program.cache_decoded:
        return "decoded"
    if by_device:
        return "page-cache-by-device"
    return "disk" if program.drop_page_cache else "page-cache"


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
    grows=True,
    answer=answer,
    papers="[002], sections 2.1 and 5.3; [004]",
)
