"""Findings, tables and chart of `input-pipeline`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from cubemesh.data.images.generated_jpegs import NAME as GENERATED
from cubemesh.data.remote.folder import is_url
from cubemesh.experiments.analysis.answer import cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.ratios import (
    format_ratio,
    plus_minus,
    ratio,
    significance,
    verdicts,
)
from cubemesh.experiments.input_pipeline.own_data import (
    is_own,
    own_workers,
    stage_table,
    unit_of,
)
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    NetworkWork,
    Point,
    Table,
)
from cubemesh.units import format_list, format_quantity

Part = Literal[
    "read",
    "decode-one",
    "decode",
    "decode-by-device",
    "copy",
    "item-one",
    "item",
    "collate",
    "disk",
    "page-cache",
    "page-cache-by-device",
    "decoded",
    "own",
    "synthetic",
    "device",
]
"""A stage of the input, or training on data from one place."""
LABELS: dict[Part, str] = {
    "read": "read from disk",
    "decode-one": "decode, one thread",
    "decode": "decode",
    "decode-by-device": "decode on the device",
    "copy": "copy to the device",
    "item-one": "samples, one thread",
    "item": "samples",
    "collate": "collate",
    "disk": "files on disk",
    "page-cache": "files in the page cache",
    "page-cache-by-device": "files decoded on the device",
    "decoded": "decoded images in memory",
    "own": "your data",
    "synthetic": "synthetic images on the host",
    "device": "one batch on the device",
}
STAGES: tuple[Part, ...] = (
    *("read", "decode-one", "decode", "decode-by-device"),
    *("item-one", "item", "collate", "copy"),
)
TRAININGS: tuple[Part, ...] = (
    "disk",
    "page-cache",
    "page-cache-by-device",
    "decoded",
    "own",
    "synthetic",
    "device",
)
PATHS: dict[str, tuple[Part, ...]] = {
    "": ("read", "decode", "item", "collate", "copy"),
    "Decoding on the device: ": ("read", "decode-by-device"),
}
"""Start of a finding → the stages between disk and step."""
TOGETHER: dict[str, tuple[Part, ...]] = {
    "": ("disk", "page-cache", "own"),
    "Decoding on the device: ": ("page-cache-by-device",),
}
"""Start of a finding → the trainings that run all these stages."""
MIN_SPEED = 0.9
"""Speed of training on files over one batch on the device, below which the input has a cost."""
PAPER_READ_BYTES_PER_S = 2e9
"""Streaming read of a DGX-1's four SSDs (DGX-1 V100 white paper [002], section 2.1)."""
PAPER_IMAGES_PER_S = 12_000
"""Minimum images/s of CNTK's reader, training AlexNet (same, section 5.3)."""

Groups = Mapping[Part, Group[Part]]
"""Groups of records by stage or training."""


def _rate(groups: Groups, name: Part) -> Figure | None:
    return groups[name].throughput if name in groups else None


def findings(groups: Groups) -> Iterator[Finding]:
    """The bottleneck, the cores and disk needed, what each input costs, and failed runs."""
    device = _rate(groups, "device")
    if device is not None:
        for how, stages in PATHS.items():
            if not how or "decode-by-device" in groups:
                yield from _bottleneck(groups, device, how, stages)
        yield from _needed(groups, device)
        yield from own_workers(groups, device)
    else:
        yield from _stages_alone(groups)
    yield from _loss(groups)
    yield from _read(groups)
    for group in groups.values():
        if group.throughput is None:
            yield failed_run(LABELS[group.key], group)


def _stages_alone(groups: Groups) -> Iterator[Finding]:
    """The rate of each stage where no training on the device was measured."""
    rates = {name: rate for name in STAGES if (rate := _rate(groups, name)) is not None}
    if rates:
        shown = (f"{LABELS[name]} {plus_minus(rate)}" for name, rate in rates.items())
        yield Finding(
            code="stage-rates",
            text=f"Images/s of each stage: {format_list(shown)}.",
            caveats=caveats(*(groups[name] for name in rates)),
            remedy="Add the part `device` (parts=…,device) to compare them with training.",
        )


def _bottleneck(
    groups: Groups, device: Figure, how: str, stages: Iterable[Part]
) -> Iterator[Finding]:
    """The slowest stage, compared with the device."""
    rates = {name: f for name in stages if (f := _rate(groups, name)) is not None}
    if not rates:
        return
    unit = unit_of(groups)
    name = min(rates, key=lambda n: rates[n].value)
    share = ratio(rates[name], device)
    sure = caveats(groups[name], groups["device"])
    bound = significance(share) < 0
    slow = None if bound else _slowest_training(groups, device, TOGETHER[how])
    if slow is not None:
        training, found = slow
        yield Finding.of(
            code="host-contention",
            question=QUESTION,
            text=f"{_begun(how, 'Slowed by its input')}: training on {LABELS[training]} is "
            f"{format_ratio(found)} the speed of one batch on the device. Each stage by itself "
            f"is faster than the device ({_STAGE[name]} is the slowest with "
            f"{plus_minus(rates[name])} {unit}, the device trains {plus_minus(device)}): "
            "together with the step they compete for the host's cores.",
            figure=found,
            unit="× the speed",
            remedy=_CONTENTION["own" if training == "own" else ""],
            caveats=caveats(groups[training], groups["device"]),
            sides=(groups[training].run_id, groups["device"].run_id),
        )
        return
    if bound:
        text = (
            f"{_begun(how, 'Input-bound')}: {_STAGE[name]} is the bottleneck with "
            f"{plus_minus(rates[name])} {unit}; the device trains {plus_minus(device)} {unit} "
            "without input cost."
        )
    else:
        text = (
            f"{_begun(how, 'Not input-bound')}: the device trains {plus_minus(device)} {unit}; "
            f"the slowest input stage, {_STAGE[name]}, reaches {plus_minus(rates[name])}."
        )
    yield Finding.of(
        code="input-bottleneck" if bound else "device-bottleneck",
        question=QUESTION,
        text=text,
        figure=share,
        unit="× the device's rate",
        remedy=_REMEDY[name] if bound else "",
        caveats=sure,
    )


def _slowest_training(
    groups: Groups, device: Figure, names: Iterable[Part]
) -> tuple[Part, Figure] | None:
    """The slowest of these trainings and its speed relative to the device's, if that is below
    0.9 significantly."""
    found = [(n, ratio(f, device)) for n in names if (f := _rate(groups, n)) is not None]
    name, share = min(found, key=lambda pair: pair[1].value, default=(None, None))
    if name is None or share is None or share.value >= MIN_SPEED or significance(share) >= 0:
        return None
    return name, share


QUESTION = "Is training input-bound?"
_CONTENTION = {
    "": "Set fewer input_threads, so that the process that runs the step keeps a core; or "
    "decode_location=device on a GPU, or cache_decoded=true.",
    "own": "Set fewer input_threads, so that the process that runs the step keeps a core; or "
    "return a DataLoader, whose workers are processes.",
}
_STAGE: dict[Part, str] = {
    "read": "reading from disk",
    "decode": "decoding",
    "decode-by-device": "decoding on the device",
    "item": "taking samples (your code)",
    "collate": "collating",
    "copy": "copying to the device",
}
_REMEDY: dict[Part, str] = {
    "read": "Use tar shards or a faster disk, or copy the data to a local disk.",
    "decode": "Use more cores, set decode_location=device on a GPU, or store smaller images.",
    "decode-by-device": "Use more cores with decode_location=host, or store smaller images.",
    "item": "Use more workers, or make each sample cheaper: store it smaller or already decoded.",
    "collate": "Return arrays of the network's own shape and type, or a DataLoader, whose "
    "workers collate.",
    "copy": "Keep data on the device, or copy fewer bytes.",
}


def _begun(how: str, first: str) -> str:
    """Start of a finding."""
    return how + (first[0].lower() + first[1:] if how else first)


def _needed(groups: Groups, device: Figure) -> Iterator[Finding]:
    """Decoding cores and disk bandwidth that the device needs."""
    decode, one = _rate(groups, "decode"), _rate(groups, "decode-one")
    threads = groups["decode"].median_of("input_threads") if "decode" in groups else None
    size = _file_bytes(groups)
    if decode is None or not threads or size is None:
        return
    core = decode.value / threads
    cores = math.ceil(device.value / core)
    unit = "core" if cores == 1 else "cores"
    single = f", {one.value:.0f} with a single thread" if one is not None else ""
    yield Finding(
        code="required-input",
        question="What input does the device need?",
        text=f"This device needs {cores} decoding {unit} ({core:.0f} images/s each{single}) and a "
        f"disk that reads {format_quantity(device.value * size, 'B/s')}.",
        value=cores,
        unit=unit,
        caveats=caveats(groups["decode"], groups["device"]),
    )


def _loss(groups: Groups) -> Iterator[Finding]:
    """Throughput of each input compared with data on the device."""
    best = _rate(groups, "device")
    for name in TRAININGS[:-1]:
        found = _rate(groups, name)
        if found is None or best is None:
            continue
        share, wait_s = ratio(found, best), groups[name].median_of("input_wait_s")
        step_ms = groups[name].step_ms
        waits = ""
        if wait_s is not None and step_ms is not None:
            waits = f"; {min(100, 1e5 * wait_s / step_ms.value):.0f} % of a step is input wait"
        verdict = verdicts([share])[0]
        how = f"{format_ratio(share)} the speed of"
        if verdict.sign == 0:
            how, waits = "as fast as", f"{waits}; {verdict.unseen}"
        yield Finding.of(
            code="input-cost",
            text=f"Training on {LABELS[name]} is {how} one batch on the device{waits}.",
            figure=share,
            unit="× the speed",
            caveats=caveats(groups[name], groups["device"]),
        )


def _read(groups: Groups) -> Iterator[Finding]:
    rate, size = _rate(groups, "read"), _file_bytes(groups)
    if rate is None or size is None:
        return
    bytes_per_s = rate.value * size
    share = bytes_per_s / PAPER_READ_BYTES_PER_S
    yield Finding(
        code="disk-bandwidth",
        text=f"Files are read at {format_quantity(bytes_per_s, 'B/s')}, {share:.2f} times the 2 "
        "GB/s of the disks of a DGX-1 (DGX-1 V100 white paper [002]).",
        value=bytes_per_s,
        unit="B/s",
        caveats=groups["read"].caveats,
    )


def _file_bytes(groups: Groups) -> float | None:
    sizes = (group.median_of("image_file_bytes") for group in groups.values())
    return next((size for size in sizes if size is not None), None)


def tables(groups: Groups) -> Iterator[Table]:
    """Stages, and trainings."""
    size = _file_bytes(groups)
    stages = [groups[name] for name in STAGES if name in groups]
    if stages and is_own(groups):
        yield stage_table(stages, LABELS, unit_of(groups))
    elif stages:
        columns = (
            Column(name="stage"),
            Column(name="images/s"),
            Column(name="threads"),
            Column(name="images/s per thread"),
            Column(name="file MB/s"),
        )
        rows = tuple(
            (
                Cell(text=LABELS[group.key], run_id=group.run_id),
                group.cell(group.throughput),
                *_stage_cells(group, size),
            )
            for group in stages
        )
        yield Table(title="Stages", columns=columns, rows=rows)
    trainings = [groups[name] for name in TRAININGS if name in groups]
    if trainings:
        yield Table(
            title="Training",
            columns=(
                Column(name="input"),
                Column(name=unit_of(groups)),
                Column(name="step", unit="ms"),
                Column(name="input wait", unit="ms"),
                Column(name="page cache hits", unit="%"),
            ),
            rows=tuple(map(_training_row, trainings)),
        )


def _stage_cells(group: Group[Part], size: float | None) -> tuple[Cell, ...]:
    """Threads, images/s per thread (one thread per core) and MB/s of a stage."""
    rate, threads = group.throughput, group.median_of("input_threads")
    if group.key == "copy" or rate is None:
        return (cell_or_dash(None),) * 3
    decodes = threads and group.key in ("decode-one", "decode")
    return (
        cell_or_dash(threads),
        cell_or_dash(rate.value / threads if threads and decodes else None),
        cell_or_dash(size and rate.value * size / 1e6),
    )


def _training_row(group: Group[Part]) -> tuple[Cell, ...]:
    wait_s, cached = (group.median_of(n) for n in ("input_wait_s", "page_cache_share"))
    return (
        Cell(text=LABELS[group.key], run_id=group.run_id),
        group.cell(group.throughput),
        group.cell(group.step_ms),
        cell_or_dash(wait_s and 1e3 * wait_s),
        cell_or_dash(cached and 100 * cached),
    )


def charts(groups: Groups) -> Iterator[Chart]:
    """All rates as bars."""

    def bars(names: Iterable[Part]) -> tuple[Point, ...]:
        known = (groups[name] for name in names if name in groups)
        return tuple(g.point(LABELS[g.key], g.throughput) for g in known)

    if not groups:
        return
    yield Chart(
        name="input-pipeline",
        title=f"{unit_of(groups)} by stage and in training",
        kind="bar",
        x=Axis(name="stage", scale="category"),
        y=Axis(name="throughput", unit=unit_of(groups), from_zero=True),
        lines=(
            Line(name="stage", points=bars(STAGES)),
            Line(name="training", points=bars(TRAININGS)),
        ),
    )


def notes(groups: Groups) -> Iterator[str]:
    """Source of the images, page cache, and the paper's figures."""
    records = [r for g in groups.values() for r in g.records]
    works = [r.spec.work for r in records]
    paths = dict.fromkeys(w.data_path for w in works if isinstance(w, NetworkWork) and w.data_path)
    for path in paths:
        if is_url(path):
            yield f"Images are requested one by one from {path}."
    figures = [r.figures["image_file_bytes"] for r in records if "image_file_bytes" in r.figures]
    for storage in dict.fromkeys(figure.method for figure in figures if figure.method):
        yield f"File system of the images: {storage}."
    if any(isinstance(w, NetworkWork) and w.data == GENERATED for w in works):
        yield (
            "The images are generated: 1,024 JPEG files of 500 × 375 pixels with 128 different "
            "random pictures. Set data_path to measure your own."
        )
    if is_own(groups):
        yield (
            "Samples are taken by your code and dropped, collated from memory, and copied, each "
            "stage by itself; in training, threads take and collate them."
        )
        return
    yield (
        "Page cache: files read from disk are dropped from memory after each read (posix_fadvise), "
        "as with more data than memory; this needs no privileges. A run that still finds files in "
        "memory has the warning page-cache. Caches of the disk and of a hypervisor are unaffected."
    )
    yield (
        "DGX-1 V100 white paper [002]: four SSDs stream 2 GB/s (section 2.1); CNTK's reader feeds "
        f"AlexNet with more than {PAPER_IMAGES_PER_S:,} images/s on a DGX-1 (section 5.3)."
    )
