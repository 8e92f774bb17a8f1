"""Ceilings of a device: fastest matrix product and convolution, memory copy, host-device copies;
the links of a machine with GPUs; and the disks of folders.

Training speed is compared with these. Each operation with one rate is searched for its fastest size
and shape (worker/run/ceilings.py) and then timed twice: the fastest few milliseconds, before a
power limit or heat slows the device, and the sustained rate over seconds. Links are matrices, a
rate or latency for each pair (frameworks/pytorch/links/). If the catalogue has a datasheet of the
device, the percentage of its dense peak is shown.

The *ridge* is the rate of the product over the rate of the copy (S. Williams et al., Roofline, CACM
52(4), 2009): work with fewer operations per byte is memory-bound.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, group_by, titled
from cubemesh.experiments.ceilings.links import link_findings, link_tables
from cubemesh.experiments.ceilings.report import (
    Key,
    copy_table,
    device_name,
    findings,
    group_key,
    product_table,
)
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.machines.catalogue import Datasheet, find
from cubemesh.measure.telemetry.gpu_set import visible
from cubemesh.schema import (
    Answer,
    Ceiling,
    Finding,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
)
from cubemesh.schema.spec import Precision
from cubemesh.schema.work import DISK_OPERATIONS, LINK_OPERATIONS

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
SECONDS = {Scale.QUICK: 2.0, Scale.DEFAULT: 5.0, Scale.FULL: 10.0}
"""Measuring time; a power limit takes effect within seconds."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `ceilings` besides the fields of its specs."""

    precisions: tuple[Precision, ...] = PRECISIONS
    """Precisions of the matrix products."""
    convolutions: bool = False
    """Whether to measure the fastest convolution in each precision too."""
    links: bool = True
    """Whether to measure the links of a machine with GPUs: of every pair and with the host."""
    folder: tuple[str, ...] | str | None = None
    """Folders on the disks to read and write, each alone and all at once; default: no disk is
    measured."""

    def __post_init__(self) -> None:
        if len(set(self.folders)) < len(self.folders):
            raise UsageError(f"folder={','.join(self.folders)}: name each folder once.")

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders."""
        if self.folder is None:
            return ()
        return (self.folder,) if isinstance(self.folder, str) else self.folder


def plan(settings: Settings, context: Context) -> Plan:
    """Every operation once; copies between host and device, and links, only with a GPU."""
    budget = replace(context.budget, seconds=SECONDS[context.scale], repeats=1)
    works = [Ceiling(operation="copy")]
    if context.has_gpu:
        works += [
            Ceiling(operation=operation, pinned=pinned)
            for operation in ("host_to_device", "device_to_host")
            for pinned in (True, False)
        ]
    computed = [Ceiling(), Ceiling(operation="convolution")][: 1 + settings.convolutions]
    specs = [
        RunSpec(work=work, program=ProgramSettings(precision=precision), budget=budget)
        for work in computed
        for precision in dict.fromkeys(settings.precisions)
    ]
    specs += [RunSpec(work=work, budget=budget) for work in works]
    if context.has_gpu and settings.links:
        gpus = len(visible(context.machine.gpus, os.environ)) or 1
        specs += [
            RunSpec(
                work=Ceiling(operation=operation),
                placement=Placement(devices=gpus),
                budget=budget,
            )
            for operation in LINK_OPERATIONS
        ]
    specs += [
        RunSpec(
            work=work,
            placement=Placement(device="cpu"),
            program=ProgramSettings(framework="null"),
            budget=budget,
        )
        for work in _disks(settings.folders)
    ]
    yield specs


def _disks(folders: Sequence[str]) -> Iterator[Ceiling]:
    """Every operation on each folder, then on all at once."""
    together: list[Sequence[str]] = [[folder] for folder in folders]
    if len(folders) > 1:
        together.append(folders)
    for first, *others in together:
        for operation in DISK_OPERATIONS:
            yield Ceiling(operation=operation, folder=first, other_folders=tuple(others))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings and tables from the records of one `ceilings`."""
    linked = [r for r in records if _operation(r) in LINK_OPERATIONS]
    rated = [r for r in records if r not in linked]
    groups = group_by(rated, group_key)
    products = [g for g in groups if g.key[0] == "matrix_product"]
    convolutions = [g for g in groups if g.key[0] == "convolution"]
    copies = [g for g in groups if g.key[0] not in ("matrix_product", "convolution")]
    device = device_name(rated or records)
    sheet = find(device)
    return answer_of(
        EXPERIMENT,
        titled(f"Ceilings of {device or 'this device'}", [r for r in records if r.ok]),
        records,
        findings=(
            *findings(products, convolutions, copies, sheet, device),
            *link_findings([r for r in linked if r.ok]),
            *_failed(linked),
        ),
        tables=(
            product_table("Matrix products", products, sheet),
            *([product_table("Convolutions", convolutions, sheet)] if convolutions else []),
            copy_table(copies, sheet),
            *link_tables([r for r in linked if r.ok]),
        ),
        notes=(*_notes(settings, sheet, products), *_link_notes(settings, linked)),
    )


def _operation(record: RunRecord) -> str:
    work = record.spec.work
    assert isinstance(work, Ceiling)
    return work.operation


def _failed(linked: Sequence[RunRecord]) -> Iterator[Finding]:
    for group in group_by(linked, _operation):
        if not group.ok:
            yield failed_run(group.key.replace("_", " "), group)


def _link_notes(settings: Settings, linked: Sequence[RunRecord]) -> Iterator[str]:
    """Why links, or some of them, were not measured."""
    if not linked:
        yield (
            "Links were left out: the machine has no GPU."
            if settings.links
            else "Links were left out (links=false)."
        )
        return
    if all(record.spec.placement.devices == 1 for record in linked):
        yield "Links between GPUs were left out: the run has one GPU."
    for unknown in dict.fromkeys(u for record in linked for u in record.unmeasured):
        yield f"Not measured: {unknown.what}: {unknown.why}."


def _notes(
    settings: Settings, sheet: Datasheet | None, products: Sequence[Group[Key]]
) -> Iterator[str]:
    if products:
        yield (
            "Fastest is the best few milliseconds, before power or heat slow the device; sustained "
            "is the rate over seconds. Matrices hold normally distributed numbers: simpler data "
            "take less power and are multiplied faster."
        )
    if settings.convolutions:
        yield (
            "Operations of a convolution are counted directly; an algorithm that needs fewer "
            "(Winograd) may exceed the datasheet."
        )
    if sheet is not None:
        sources = dict.fromkeys(
            sheet.figures[name].source
            for name in (*settings.precisions, "memory_bytes_per_s")
            if name in sheet.figures
        )
        yield f"Datasheet of {sheet.name}, dense peaks: {'; '.join(sources)}."
    if not settings.folders:
        yield "No disk was measured. Set a folder on it with --set folder=PATH."


EXPERIMENT = Experiment(
    name="ceilings",
    question="How fast can this device multiply matrices and move data?",
    settings=Settings,
    works=(Ceiling,),
    varies={
        "precision": "precisions",
        "operation": "precisions",
        "pinned": "precisions",
        "size": "precisions",
        "shape": "precisions",
        "other_folders": "folder",
    },
    plan=plan,
    answer=answer,
    papers="[001] (utilization), [002], section 2.1",
)
