"""Text of figures, settings and outcomes, the same in the page and the terminal.

A figure with an interval is `19.9 ± 0.2`, rounded by its interval; a whole number is in full; other
numbers have the significant digits of their column.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Mapping
from typing import Any

from cubemesh.networks import rate_unit
from cubemesh.schema import (
    AccumulatedWork,
    Axis,
    Ceiling,
    Collective,
    Forward,
    ForwardBackward,
    Input,
    Machine,
    NetworkWork,
    OwnStep,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Training,
)
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.schema.serialization import to_plain
from cubemesh.units import (
    format_bytes,
    format_count,
    format_interval,
    format_number,
    format_quantity,
    format_seconds,
)
from cubemesh.untrusted import clean

FRAMEWORK_NAMES: Mapping[str, str] = {
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
}

INPUT_STAGES: Mapping[str, str] = {
    "read": "read from disk",
    "decode": "decode",
    "copy": "copy to the device",
    "item": "take samples of your data",
    "collate": "collate",
}
"""Stage of the input → its words."""

SCALED = frozenset({"bytes", "B", "s", "FLOP", "FLOP/s", "B/s", "bytes/s", "Hz", "W", "J"})
"""Units with SI prefixes: they are in the cell, not in the column head."""

_WHOLE = 1e15
_HOUR_S, _DAY_S = 3600.0, 86400.0
_LONG_S = 120
"""Longer durations are in minutes, hours or days."""
_OF_RANK = re.compile(r"^rank \d+ of \d+: ")


def number(value: float, digits: int = 3) -> str:
    """`value` to so many significant digits, thousands separated; whole numbers in full."""
    if math.isfinite(value) and value == int(value) and abs(value) < _WHOLE:
        return format_count(int(value))
    return format_number(value, digits)


def quantity(
    value: float, unit: str, low: float | None = None, high: float | None = None, digits: int = 3
) -> str:
    """A figure with its unit and its interval, where it has one: `19.9 ± 0.2 images/s`.

    Bytes, seconds and other units with prefixes are scaled: `0.9 GiB`, `110 ms`.
    """
    unit = clean(unit)
    if low is not None and high is not None:
        return format_interval(value, low, high, unit)
    if unit in SCALED or unit.startswith("×"):
        return format_quantity(value, unit, digits)
    return f"{number(value, digits)} {unit}".rstrip()


def bare_quantity(
    value: float, unit: str, low: float | None = None, high: float | None = None, digits: int = 3
) -> str:
    """As `quantity`, without the unit, unless that has a prefix: `19.9 ± 0.2`, `110 ms`."""
    if unit.startswith("×"):
        return quantity(value, "×", low, high, digits).replace("×", "", 1)
    return quantity(value, unit if unit in SCALED else "", low, high, digits)


_WIDE = re.compile(r"(?P<figure>.*) \((?P<ends>.*)\) ?(?P<scaled>.*)")


def split_figure(
    value: float, unit: str, low: float | None, high: float | None
) -> tuple[str, str, str]:
    """A figure for large print: the number, its unit, and its interval ("± 14", "84 to 530" of a
    wide one, or ""). The unit of a ratio is next to the number: "1.32×"."""
    if unit == "s" and value >= _LONG_S:
        return _split_duration(value, low, high)
    text = bare_quantity(value, unit, low, high)
    if wide := _WIDE.fullmatch(text):
        figure, scaled, interval = wide["figure"], wide["scaled"], wide["ends"]
    else:
        figure, _, interval = text.partition(" ± ")
        spread, _, scaled = interval.partition(" ")
        if not interval:
            figure, _, scaled = figure.partition(" ")
        interval = f"± {spread}" if spread else ""
    if unit == "×":
        return f"{figure}×", "", interval
    return figure, scaled or clean(unit), interval


def _split_duration(value: float, low: float | None, high: float | None) -> tuple[str, str, str]:
    """A duration of minutes or more and its interval, to the same unit."""
    if low is None or high is None:
        return format_seconds(value), "", ""
    half = max(high - value, value - low)
    if value >= _DAY_S:
        figure, _, interval = split_figure(value / _DAY_S, "", low / _DAY_S, high / _DAY_S)
        return f"{figure} days", "", interval
    per = 60 if value >= _HOUR_S else 1
    return format_seconds(value), "", f"± {format_seconds(per * math.ceil(half / per))}"


def unbroken(text: str) -> str:
    """`text` with no line break around ±."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def words(name: str) -> str:
    """A name of the code as words: `host_cpu` → "host CPU"."""
    spaced = clean(name.replace("_", " "))
    return re.sub(r"\b[cg]pu\b", lambda found: found[0].upper(), spaced)


def axis_title(axis: Axis) -> str:
    """The name of an axis with its unit, unless the name has it."""
    return with_unit(axis.name, axis.unit)


def with_unit(name: str, unit: str) -> str:
    """A name with its unit in brackets, unless it has it."""
    if not unit or unit in name:
        return clean(name)
    return clean(f"{name} ({unit})" if name else unit)


def run_name(spec: RunSpec) -> str:
    """The short name of a run: `resnet-50 · batch size 16`."""
    work = spec.work
    if isinstance(work, NetworkWork):
        forward = " forward" if isinstance(work, Forward) else ""
        forward = " forward and backward" if isinstance(work, ForwardBackward) else forward
        name = f"{work.network}{forward}"
        if isinstance(work, Input):  # no network runs: it only gives the size of its images
            images = "" if work.own_data else "images "
            name = f"input: {INPUT_STAGES[work.stage]}, {images}for {work.network}"
        parts = [name, f"batch size {work.batch_per_device:,}"]
        if isinstance(work, AccumulatedWork) and work.accumulation_steps > 1:
            parts[-1] += f" in {work.accumulation_steps:,} micro-batches"
        if work.image_size is not None:
            parts.append(f"{work.image_size} pixels")
    elif isinstance(work, Collective):
        reduced = f"{work.reduction} " if work.reduction != "sum" else ""
        parts = [f"{work.collective} of {reduced}{work.data_type}"]
    elif isinstance(work, OwnStep):
        parts = [f"step {work.name}", f"{work.samples:,} samples"]
        if work.samples == 1:
            parts[1] = "1 sample"
        if work.by == "caller":
            parts.append("measured by its program")
    else:
        assert isinstance(work, Ceiling)
        parts = [f"{work.operation.replace('_', ' ')} ceiling"]
        if not work.pinned:
            parts.append("pageable")
        if work.size is not None:
            parts.append(f"size {work.size:,}")
    if spec.placement.devices > 1:
        parts += _together(spec)
    parts += _arrangement(spec)
    program, usual = spec.program, ProgramSettings()
    parts += [
        f"data on {value}" if name == "data_location" else value
        for name in ("framework", "precision", "layout", "data_location")
        if (value := getattr(program, name)) != getattr(usual, name)
    ]
    if spec.against is not None:
        parts.append("interleaved A/B")
    return clean(" · ".join(parts))


def _together(spec: RunSpec) -> list[str]:
    """Number of devices and hosts, link, gradient synchronization and global batch size of a
    run."""
    place = spec.placement
    hosts = f" on {len(place.hosts)} hosts" if place.hosts else ""
    parts = [f"{place.devices} devices{hosts}"]
    if place.link != "auto":
        parts.append(f"link {place.link}")
    if isinstance(spec.work, Training):
        parts.append("no sync" if spec.program.sync == "none" else spec.program.sync)
        parts.append(f"global batch size {spec.global_batch:,}")
    return parts


def _arrangement(spec: RunSpec) -> list[str]:
    """Threads and pinning of a run, where they are not the default."""
    place, parts = spec.placement, []
    if place.threads is not None:
        parts.append(f"{place.threads} thread{'' if place.threads == 1 else 's'}")
    if place.pinning != "none":
        parts.append(place.pinning)
    if place.numa_node is not None:
        parts.append(f"NUMA node {place.numa_node}")
    if place.memory_policy != "default":
        parts.append(f"memory {place.memory_policy}")
    if place.huge_pages == "never":
        parts.append("no huge pages")
    return parts


def own_settings(spec: RunSpec) -> tuple[tuple[str, str], ...]:
    """The settings of a spec that differ from their defaults, as (name, value)."""
    own = dataclasses.replace(spec, against=None, tuned=None)
    plain: dict[str, Any] = to_plain(own, defaults=False)
    return tuple(
        (clean(name), clean(str(value))) for part in plain.values() for name, value in part.items()
    )


def outcome_text(record: RunRecord) -> str:
    """The outcome of a run with its message."""
    ending = STATUS_WORDS[record.outcome.status]
    message = clean(record.outcome.message)
    if not message or _OF_RANK.sub("", message.lower()).startswith(ending):
        return message or ending
    return f"{ending}: {message}"


def ending(record: RunRecord, shown: set[str]) -> str:
    """The outcome with its message; without it if it is in `shown`, to which it is added."""
    text = outcome_text(record)
    short = STATUS_WORDS[record.outcome.status]
    if text in shown and text != short:
        return f"{short} (same reason)"
    shown.add(text)
    return text


_RESULTS = {
    "throughput_per_s": "",
    "rate_flops_per_s": "",
    "rate_bytes_per_s": "",
    "bus_bytes_per_s": "bus bandwidth ",
    "map": "mAP ",
    "accuracy": "accuracy ",
}


def result_text(record: RunRecord) -> str:
    """The main figures of a run: `19.9 ± 0.2 images/s`, `accuracy 0.968`, or ""."""
    shown: list[str] = []
    # The throughput already has the rate, and of a detector the accuracy is its mAP.
    repeated = {"accuracy"} if "map" in record.figures else set()
    for name, label in _RESULTS.items():
        if name == "rate_flops_per_s" and shown:
            repeated.add(name)
        if name in record.figures and name not in repeated:
            shown.append(f"{label}{figure_text(record, name)}")
    return clean(" · ".join(shown))


def figure_text(record: RunRecord, name: str) -> str:
    """One figure of a run: `19.9 ± 0.2 images/s`; "" where it has none."""
    figure = record.figures.get(name)
    if figure is None:
        return ""
    return clean(quantity(figure.value, figure_unit(record, name), figure.low, figure.high))


def figure_unit(record: RunRecord, name: str) -> str:
    """The unit of a figure of a run, with what its network's samples are: `images/s`."""
    unit, work = record.figures[name].unit, record.spec.work
    return (
        rate_unit(work.network) if unit == "samples/s" and isinstance(work, NetworkWork) else unit
    )


_TRADEMARKS = re.compile(r"\((?:R|TM|C)\)| (?:CPU|Processor)\b.*", re.IGNORECASE)
"""What the names of processors have besides maker and model."""


def machine_line(machine: Machine, most: int | None = None) -> str:
    """The machine in one line: name, processors or GPUs, memory, and frameworks, the first and
    those that fit into `most` characters."""
    cpu = machine.cpu
    parts = [machine.hostname]
    if machine.gpus:
        names = [gpu.name for gpu in machine.gpus]
        parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    cores = f"{cpu.usable_cores} {'core' if cpu.usable_cores == 1 else 'cores'}"
    model = _TRADEMARKS.sub("", cpu.model or "").strip()
    parts.append(f"{cores} of {model}" if model else cores)
    if machine.memory.usable_bytes is not None:
        parts.append(format_bytes(machine.memory.usable_bytes))
    frameworks = [
        f"{label} {machine.software.packages[name]}"
        for name, label in FRAMEWORK_NAMES.items()
        if name in machine.software.packages
    ]
    line = " · ".join((*parts, *frameworks[:1]))
    for framework in frameworks[1:]:
        longer = f"{line} · {framework}"
        if most is None or len(longer) <= most:
            line = longer
    return clean(line)


def machine_name(machine: Machine) -> str:
    """A machine in a few words: its devices and its name."""
    names = [gpu.name for gpu in machine.gpus] or [machine.cpu.model or "CPU"]
    counts = {name: names.count(name) for name in names}
    listed = [name if count == 1 else f"{count} × {name}" for name, count in counts.items()]
    return clean(f"{', '.join(listed)} · {machine.hostname}")


def moment(iso: str) -> str:
    """`20 Nov 2026, 14:05 UTC` of an ISO 8601 date; other text unchanged."""
    try:
        when = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return clean(iso)
    if when.tzinfo is not None:
        when = when.astimezone(datetime.UTC)
    return f"{when.day} {when:%b %Y, %H:%M} UTC"


def day(iso: str) -> str:
    """`20 Nov 2026` of an ISO 8601 date; other text unchanged."""
    return moment(iso).partition(",")[0]
