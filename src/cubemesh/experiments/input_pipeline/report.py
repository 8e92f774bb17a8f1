"""The findings, tables and chart of `input-pipeline`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from cubemesh.data.images.generated_jpegs import NAME as MADE
from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, significance
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
from cubemesh.units import format_quantity

READ, DECODE_ONE, DECODE, COPY = "read", "decode-one", "decode", "copy"
DISK, MEMORY, DECODED, SYNTHETIC = "disk", "page-cache", "decoded", "synthetic"
DEVICE = "device"
BY_DEVICE, MEMORY_BY_DEVICE = "decode-by-device", "page-cache-by-device"
LABELS = {
    READ: "read from the disk",
    DECODE_ONE: "decode, one thread",
    DECODE: "decode",
    BY_DEVICE: "decode on the device",
    COPY: "copy to the device",
    DISK: "files on the disk",
    MEMORY: "files in the page cache",
    MEMORY_BY_DEVICE: "files decoded on the device",
    DECODED: "images decoded in memory",
    SYNTHETIC: "synthetic images on the host",
    DEVICE: "one batch on the device",
}
STAGES = (READ, DECODE_ONE, DECODE, BY_DEVICE, COPY)
TRAININGS = (DISK, MEMORY, MEMORY_BY_DEVICE, DECODED, SYNTHETIC, DEVICE)
BEFORE_THE_STEP = {"": (READ, DECODE, COPY), "Decoded on the device: ": (READ, BY_DEVICE)}
"""How findings begin → the stages between the disk and a step that is fed so."""
DOCUMENTED_READ_BYTES_PER_S = 2e9
"""Document 002, section 2.1: streaming read of a DGX-1's four SSDs."""
DOCUMENTED_PER_S = 12_000
"""Document 002, section 5.3: images a second of CNTK's reader, training AlexNet; more than."""

Groups = Mapping[str, Group[str]]
"""Groups of records by what was measured."""


def _rate(groups: Groups, name: str) -> Figure | None:
    return groups[name].throughput if name in groups else None


def findings(groups: Groups) -> Iterator[Finding]:
    """The bottleneck, what it would take, what training loses, and what failed."""
    device = _rate(groups, DEVICE)
    if device is not None:
        for how, stages in BEFORE_THE_STEP.items():
            if not how or BY_DEVICE in groups:
                yield from _bottleneck(groups, device, how, stages)
        yield from _needed(groups, device)
    yield from _loss(groups)
    yield from _read(groups)
    for group in groups.values():
        if group.throughput is None:
            yield Finding(text=f"{LABELS[group.key]}: {group.why}.")


def _bottleneck(
    groups: Groups, device: Figure, how: str, stages: Iterable[str]
) -> Iterator[Finding]:
    """The slowest of the stages, where it is surely slower than the device."""
    rates = {name: f for name in stages if (f := _rate(groups, name)) is not None}
    if not rates:
        return
    name = min(rates, key=lambda n: rates[n].value)
    share = ratio(rates[name], device)
    sure = caveats(groups[name], groups[DEVICE])
    if significance(share) < 0:
        text = (
            f"{_begun(how, _STAGE[name])} is the bottleneck: {plus_minus(rates[name])} images/s, "
            f"and the device trains {plus_minus(device)} when feeding it costs nothing."
        )
    else:
        text = (
            f"{_begun(how, 'The device')} is the bottleneck: it trains {plus_minus(device)} "
            f"images/s, and the slowest stage before it, {_STAGE[name].lower()}, makes "
            f"{plus_minus(rates[name])}."
        )
    yield Finding(
        question="Can the input keep up with the device?",
        text=text,
        value=share.value,
        unit="× what the device takes",
        low=share.low,
        high=share.high,
        remedy=_REMEDY[name] if significance(share) < 0 else "",
        caveats=sure,
    )


_STAGE = {
    READ: "Reading from the disk",
    DECODE: "Decoding",
    BY_DEVICE: "Decoding there",
    COPY: "Copying to the device",
}
_REMEDY = {
    READ: "Use tar shards or a faster disk, or copy the data to a local one.",
    DECODE: "Give it more cores, set decode_location=device on a GPU, or store images smaller.",
    BY_DEVICE: "Give it more cores with decode_location=host, or store images smaller.",
    COPY: "Keep data on the device, or copy fewer bytes.",
}


def _begun(how: str, first: str) -> str:
    """The first words of a finding."""
    return how + (first[0].lower() + first[1:] if how else first)


def _needed(groups: Groups, device: Figure) -> Iterator[Finding]:
    """Cores and disk that would feed the device, from the rates of a core and of an image."""
    decode, one = _rate(groups, DECODE), _rate(groups, DECODE_ONE)
    threads = groups[DECODE].median_of("input_threads") if DECODE in groups else None
    size = _file_bytes(groups)
    if decode is None or not threads or size is None:
        return
    core = decode.value / threads
    cores = math.ceil(device.value / core)
    unit = "core" if cores == 1 else "cores"
    alone = f" ({one.value:.0f} where one works alone)" if one is not None else ""
    yield Finding(
        question="What would it take to feed it?",
        text=f"To feed this device takes {cores} {unit} that decode{'s' * (cores == 1)}, at "
        f"{core:.0f} images/s each{alone}, and a disk that reads "
        f"{format_quantity(device.value * size, 'B/s')}.",
        value=cores,
        unit=unit,
        caveats=caveats(groups[DECODE], groups[DEVICE]),
    )


def _loss(groups: Groups) -> Iterator[Finding]:
    """What training loses to each step away from the device."""
    best = _rate(groups, DEVICE)
    for name in TRAININGS[:-1]:
        found = _rate(groups, name)
        if found is None or best is None:
            continue
        share, wait_s = ratio(found, best), groups[name].median_of("input_wait_s")
        step_ms = groups[name].step_ms
        waits = ""
        if wait_s is not None and step_ms is not None:
            waits = (
                f"; {min(100, 1e5 * wait_s / step_ms.value):.0f} % of a step waits for its input"
            )
        level = "as fast as" if significance(share) == 0 else f"{format_ratio(share)} as fast as"
        yield Finding(
            text=f"Training on {LABELS[name]} is {level} on one batch that lies on the device"
            f"{waits}.",
            caveats=caveats(groups[name], groups[DEVICE]),
        )


def _read(groups: Groups) -> Iterator[Finding]:
    rate, size = _rate(groups, READ), _file_bytes(groups)
    if rate is None or size is None:
        return
    bytes_per_s = rate.value * size
    share = bytes_per_s / DOCUMENTED_READ_BYTES_PER_S
    yield Finding(
        text=f"Files are read at {format_quantity(bytes_per_s, 'B/s')}, {share:.2f} times the 2 "
        "GB/s that document 002 gives for the disks of a DGX-1.",
        caveats=groups[READ].caveats,
    )


def _file_bytes(groups: Groups) -> float | None:
    sizes = (group.median_of("image_file_bytes") for group in groups.values())
    return next((size for size in sizes if size is not None), None)


def tables(groups: Groups) -> Iterator[Table]:
    """The stages on their own, and training."""
    size = _file_bytes(groups)
    stages = [groups[name] for name in STAGES if name in groups]
    if stages:
        columns = (
            Column(name="stage"),
            Column(name="images/s"),
            Column(name="threads"),
            Column(name="images/s a thread"),
            Column(name="MB/s of files"),
        )
        rows = tuple(
            (
                Cell(text=LABELS[group.key], run_id=group.run_id),
                group.cell(group.throughput),
                _number(group.median_of("input_threads"), group.key != COPY),
                _number(_per_thread(group), group.key in (DECODE_ONE, DECODE)),
                _number(
                    group.throughput.value * size / 1e6 if group.throughput and size else None,
                    group.key != COPY,
                ),
            )
            for group in stages
        )
        yield Table(title="Each stage on its own", columns=columns, rows=rows)
    trainings = [groups[name] for name in TRAININGS if name in groups]
    if trainings:
        yield Table(
            title="Training",
            columns=(
                Column(name="fed from"),
                Column(name="images/s"),
                Column(name="step", unit="ms"),
                Column(name="waits for input", unit="ms"),
                Column(name="in the page cache before", unit="%"),
            ),
            rows=tuple(map(_training_row, trainings)),
        )


def _per_thread(group: Group[str]) -> float | None:
    """Images a second of each thread, of which every core has one."""
    threads = group.median_of("input_threads")
    return group.throughput.value / threads if group.throughput and threads else None


def _training_row(group: Group[str]) -> tuple[Cell, ...]:
    wait_s, cached = (group.median_of(n) for n in ("input_wait_s", "page_cache_share"))
    return (
        Cell(text=LABELS[group.key], run_id=group.run_id),
        group.cell(group.throughput),
        group.cell(group.step_ms),
        _number(None if wait_s is None else 1e3 * wait_s),
        _number(None if cached is None else 100 * cached),
    )


def _number(value: float | None, has_one: bool = True) -> Cell:
    return Cell(text="–") if value is None or not has_one else Cell(value=value)


def charts(groups: Groups) -> Iterator[Chart]:
    """All rates as bars."""

    def bars(names: Iterable[str]) -> tuple[Point, ...]:
        shown = (groups[name] for name in names if name in groups)
        return tuple(g.point(LABELS[g.key], g.throughput) for g in shown)

    if not groups:
        return
    yield Chart(
        name="input-pipeline",
        title="images/s by stage, and in training",
        kind="bar",
        x=Axis(name="stage", scale="category"),
        y=Axis(name="throughput", unit="images/s", from_zero=True),
        lines=(
            Line(name="one stage alone", points=bars(STAGES)),
            Line(name="training", points=bars(TRAININGS)),
        ),
    )


def notes(groups: Groups) -> Iterator[str]:
    """Where the images come from, what is said of the page cache, and the document's figures."""
    works = (r.spec.work for g in groups.values() for r in g.records)
    if any(isinstance(w, NetworkWork) and w.data == MADE for w in works):
        yield (
            "The images are made: 1,024 JPEG files of 500 × 375 pixels, 128 different pictures of "
            "chance. Set data_path to measure your own."
        )
    yield (
        "Page cache: what is read from the disk is dropped from memory after each reading "
        "(posix_fadvise), as if there were more data than memory; no rights are needed for it, and "
        "a run that finds its files in memory all the same says so (page-cache). The disk's own "
        "cache, and a hypervisor's, stay as they are."
    )
    yield (
        "Document 002: four SSDs read 2 GB/s in a stream (section 2.1), CNTK's reader feeds "
        f"AlexNet with more than {DOCUMENTED_PER_S:,} images/s on a DGX-1 (section 5.3)."
    )
