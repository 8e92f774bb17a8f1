"""Facts of a run, for a page or a terminal: figures, step breakdown, phases, telemetry."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cubemesh.experiments.analysis.comparison import changes, ratio_of_record
from cubemesh.experiments.analysis.utilization_columns import COLUMNS
from cubemesh.exports.record_json import step_median
from cubemesh.frameworks import entry
from cubemesh.measure.attribution.bottlenecks import (
    largest_bottleneck,
    over_ranks,
    step_parts,
)
from cubemesh.measure.telemetry.gpu import throttle_words
from cubemesh.parallel.staleness import FIRST_UPDATES, HISTOGRAM
from cubemesh.schema import Breakdown, Figure, Part, Rank, RunRecord, Series, Unknown
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views import formatting

_NAMES: Mapping[str, str] = {
    "mean_power_watts": "mean power",
    "energy_joules_per_sample": "energy per sample",
    "samples_per_joule": "samples/J",
    "gpu_power_watts": "GPU power",
    "gpu_idle_watts": "GPU power before the run",
    "cpu_package_watts": "CPU package power",
    "dram_watts": "DRAM power",
    "gpu_energy_joules": "GPU energy (counter)",
    "gpu_energy_integrated_joules": "GPU energy (integrated power)",
    "rate_flops_per_s": "sustained",
    "rate_bytes_per_s": "sustained",
    "fastest_flops_per_s": "fastest",
    "fastest_bytes_per_s": "fastest",
    "bus_bytes_per_s": "bus bandwidth",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_device": "tokens/s per device",
    "energy_joules_per_token": "energy per token",
    "mfu_6n_percent": "MFU (6N)",
    "padding_percent": "padding",
    "step_flops": "matrix operations of a step",
    "model_flops_per_s": "matrix operations",
    "model_bytes_per_s": "memory traffic (counted)",
    "recomputed_percent": "operations computed again (of the step's)",
    "hfu_percent": "HFU",
    "ceiling_hfu_percent": "matmul use with operations computed again",
    "staleness": "mean gradient staleness",
    "staleness_most": "maximum staleness",
    "updates_taking_turns": "sequential updates",
    "pipeline_wait": "wait of a pipeline's stage",
    "pipeline_bubble": "bubble of the pipeline's schedule",
    "pipeline_imbalance": "imbalance of the pipeline's stages",
    "pipeline_transfer": "sending between stages",
    "pipeline_bubble_forecast": "bubble, forecast",
    "pipeline_gradient_wait": "averaging gradients of a hybrid",
    "memory_weights_bytes": "weights in memory",
    "memory_gradients_bytes": "gradients in memory",
    "memory_optimizer_bytes": "optimizer state in memory",
    "memory_activations_bytes": "activations and temporary arrays",
    "memory_fragmentation_bytes": "fragmentation of memory",
    "clock_loss_percent": "clock lost to throttling",
    "telemetry_cpu_share": "telemetry overhead",
    "telemetry_cpu_percent": "telemetry overhead (CPU %)",
    **COLUMNS,
}
"""Figure → its name for readers, where that is not the key in words."""

REASONS = "gpu_throttle_reasons"

MOST_ROWS = 10
"""Rows of a breakdown that are shown."""
MOST_RANKS = 24
"""Updates whose rank is listed."""


class TimeShare(NamedTuple):
    """A phase of the run, or a part of its step, as a fraction of all of them."""

    name: str
    seconds: str
    share: float
    """0 to 1."""
    note: str


def repeated_unmeasured(records: Iterable[RunRecord]) -> tuple[Unknown, ...]:
    """What several runs could not measure for the same reason, such as energy in a virtual
    machine: shown once, not in each run."""
    counts = Counter(unknown for record in records for unknown in dict.fromkeys(record.unmeasured))
    return tuple(unknown for unknown, count in counts.items() if count > 1)


def run_facts(
    record: RunRecord, shown_elsewhere: Collection[Unknown] = ()
) -> tuple[tuple[str, str], ...]:
    """The figures of a run with their intervals, when and where it ran, and its ids."""
    facts = []
    if record.measured:
        median, interval = step_median(record)
        low, high = (interval.low, interval.high) if interval else (None, None)
        facts.append(("median step time", formatting.quantity(median, "s", low, high)))
        facts.append(("windows", formatting.number(len(record.measured))))
    facts += [
        (figure_name(name), _figure_text(name, figure))
        for name, figure in record.figures.items()
        if name not in ("throughput_per_s", "step_s", "wall_s")
    ]
    facts += _staleness(record)
    if "mean_power_watts" in record.figures:
        covered = record.figures["mean_power_watts"].method
        facts.append(("power measured of", clean(covered)))
    if record.library:
        facts.append(("collective library", clean(record.library)))
    facts += [(clean(u.what), clean(u.why)) for u in record.unmeasured if u not in shown_elsewhere]
    facts += _comparison(record)
    facts += _tuned(record)
    facts.append(("wall time", format_seconds(record.elapsed_s)))
    facts.append(("started", formatting.moment(record.started_utc)))
    devices = dict.fromkeys(
        f"{' '.join(rank.devices) or rank.device}"
        f"{f' ({rank.device_name})' if rank.device_name else ''} on {rank.host}"
        for rank in record.ranks
    )
    if len(record.ranks) > 1:
        facts += [(f"rank {rank.rank}", _rank_text(rank, record)) for rank in record.ranks]
        facts += [
            (f"step of rank {rank}", _parts_text(parts))
            for rank, parts in enumerate(record.rank_parts)
        ]
    elif record.ranks and record.ranks[0].processors:
        facts.append(("CPU affinity", _processors(record.ranks[0])))
    if devices:
        facts.append(("devices", clean(", ".join(devices))))
    if record.environment is not None:
        packages = record.environment.software.packages
        own = [p for p in entry(record.spec.program.framework).packages if p in packages]
        versions = ", ".join(f"{name} {packages[name]}" for name in own)
        facts.append(("python", clean(f"{record.environment.python} ({versions})")))
    if record.source:
        facts.append(("source", clean(record.source)))
    facts.append(("run", clean(record.run_id)))
    facts.append(("spec", record.key.spec_id))
    if record.attempt > 1:
        facts.append(("attempt", str(record.attempt)))
    return tuple(facts)


def _processors(rank: Rank) -> str:
    """As the kernel writes a list: `0-3, 8`."""
    runs: list[list[int]] = []
    for number in rank.processors:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _rank_text(rank: Rank, record: RunRecord) -> str:
    """Device, link, outcome and throughput of a rank."""
    bound = f"processors {_processors(rank)}" if rank.processors else ""
    device = "" if bound and rank.device == "cpu" else rank.device
    over = " through ".join(filter(None, (rank.transport, rank.interface)))
    parts = [device, bound, over, rank.outcome.status.value, rank.outcome.message]
    own = [w for w in record.measured if w.rank == rank.rank]
    if own and "throughput_per_s" in record.figures:
        rate = sum(w.samples for w in own) / sum(w.elapsed_s for w in own)
        parts.append(formatting.quantity(rate, formatting.figure_unit(record, "throughput_per_s")))
    if rank.utilization is not None:
        parts.append(f"{rank.utilization.value:.0f} % utilized")
    return clean(", ".join(filter(None, parts)))


def _parts_text(parts: Sequence[Part]) -> str:
    """The breakdown of a rank's step, the largest part first."""
    step = format_seconds(math.fsum(part.seconds for part in parts))
    ordered = sorted(parts, key=lambda part: -part.seconds)
    shares = [f"{format_seconds(part.seconds)} {formatting.words(part.name)}" for part in ordered]
    return f"{step}: {', '.join(shares)}"


def _staleness(record: RunRecord) -> list[tuple[str, str]]:
    """Of an asynchronous run: the staleness histogram, and the ranks of the first updates."""
    facts = []
    for curve in record.curves:
        if curve.name == HISTOGRAM:
            total = math.fsum(curve.y)
            shares = [100 * count / total for count in curve.y]
            counts = (f"{x:.0f} ({y:.1f} %)" for x, y in zip(curve.x, shares, strict=True))
            facts.append(("staleness histogram", ", ".join(counts)))
        if curve.name == FIRST_UPDATES:
            ranks = " ".join(f"{rank:.0f}" for rank in curve.y[:MOST_RANKS])
            facts.append(("ranks of the first updates", ranks))
    return facts


def _figure_text(name: str, figure: Figure) -> str:
    """A figure with its interval; of ceilings and utilizations also its method."""
    text = formatting.quantity(figure.value, figure.unit, figure.low, figure.high)
    explained = name in COLUMNS or name.startswith(("rate_", "fastest_", "bus_", "latency_"))
    return clean(f"{text}, {figure.method}") if explained and figure.method else text


def part_shares(record: RunRecord) -> tuple[TimeShare, ...]:
    """The attribution of the step, with methods, the mean over the ranks; empty where it was not
    profiled."""
    return _shares((formatting.words(p.name), p.seconds, p.method) for p in step_parts(record))


def parts_title(record: RunRecord) -> str:
    """The title of `part_shares`: `…, mean over 4 ranks` of several."""
    return ", ".join(filter(None, ("Breakdown of the mean step time", over_ranks(record))))


def phase_shares(record: RunRecord) -> tuple[TimeShare, ...]:
    """The phases of rank 0 in their order; those of one name are added."""
    seconds: dict[str, float] = {}
    notes: dict[str, str] = {}
    for phase in record.phases:
        if phase.rank == 0:
            seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.elapsed_s
            if phase.cached is not None:
                notes[phase.name] = "cached" if phase.cached else "not cached"
    return _shares((name, spent, notes.get(name, "")) for name, spent in seconds.items())


def _shares(spent: Iterable[tuple[str, float, str]]) -> tuple[TimeShare, ...]:
    """(name, seconds, note) as fractions of their sum."""
    known = list(spent)
    total = math.fsum(seconds for _, seconds, _ in known)
    return tuple(
        TimeShare(
            name=clean(name),
            seconds=format_seconds(seconds),
            share=seconds / total if total > 0 else 0.0,
            note=clean(note),
        )
        for name, seconds, note in known
    )


def bottleneck_text(record: RunRecord) -> str:
    """The largest bottleneck of the step and its remedy; empty where it was not profiled."""
    found = largest_bottleneck(record)
    if found is None:
        return ""
    return clean(f"{found.text}: {found.remedy}." if found.remedy else f"{found.text}.")


def breakdown_facts(breakdown: Breakdown) -> tuple[tuple[str, str], ...]:
    """The longest rows of a breakdown, and the sum of the others."""
    rows = breakdown.rows
    shown = [(clean(r.name), format_seconds(r.seconds)) for r in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        rest = math.fsum(row.seconds for row in rows[MOST_ROWS:])
        shown.append((f"{len(rows) - MOST_ROWS} more", format_seconds(rest)))
    return tuple(shown)


def _comparison(record: RunRecord) -> list[tuple[str, str]]:
    """The other program of an interleaved A/B run, and the verdict."""
    if record.spec.against is None:
        return []
    pairs = changes(record)
    other = ", ".join(f"{name}={b} (here {a})" for name, a, b in pairs) or "the same program"
    facts = [("interleaved with", clean(other))]
    ratio = ratio_of_record(record)
    if ratio is not None:
        facts.append(("verdict", clean(f"{ratio.verdict.value} ({ratio.method})")))
    return facts


def _tuned(record: RunRecord) -> list[tuple[str, str]]:
    """The settings that a tuning chose."""
    tuned = record.spec.tuned
    if tuned is None:
        return []
    chosen = ", ".join(tuned.settings) or "the defaults"
    when = formatting.moment(tuned.tuned_utc)
    source = f"tuning {tuned.experiment_run_id} of {when}, batch size {tuned.batch_per_device}"
    return [("tuned", clean(f"{chosen} ({source})"))]


def series_note(series: Series) -> str:
    """The range and the duration of a series; "" where it has no numbers."""
    if series.name == REASONS:
        return throttle_text(series.values)
    _, unit = series_name(series)
    known = [value for value in series.values if math.isfinite(value)]
    if not known:
        return ""
    ends = [formatting.quantity(end, unit) for end in (min(known), max(known))]
    return f"{ends[0]} to {ends[1]} over {format_seconds(series.times_s[-1] - series.times_s[0])}"


def throttle_text(values: Sequence[float]) -> str:
    """`power cap (85 % of readings)`: the reasons in these values of `gpu_throttle_reasons`."""
    seen = Counter(words for value in values for words in throttle_words(value))
    shown = (f"{w} ({100 * n / len(values):.0f} % of readings)" for w, n in seen.most_common())
    return ", ".join(shown) or "none"


_SERIES_UNITS: Mapping[str, str] = {
    "_bytes_per_s": "bytes/s",
    "_joules": "J",
    "_percent": "%",
    "_bytes": "bytes",
    "_watts": "W",
    "_mhz": "MHz",
    "_celsius": "°C",
}

_SERIES_WORDS: Mapping[str, str] = {
    "gpu_clock_sm_mhz": "GPU SM clock",
    "cpu_package_watts": "CPU package power",
}
"""Series whose names are not the words of their keys."""


def series_name(series: Series) -> tuple[str, str]:
    """The name of a series for readers, and its unit, from the ending of its key."""
    name, unit = series.name, ""
    for ending, known in _SERIES_UNITS.items():
        if name.endswith(ending):
            name, unit = name.removesuffix(ending), known
    if unit == "bytes" and "memory" not in name:
        name += " memory"
    known_device = series.device == "host" or name.startswith(series.device)
    where = "" if known_device else f", {series.device}"
    rank = f", rank {series.rank}" if series.rank else ""
    words = _SERIES_WORDS.get(series.name) or formatting.words(name)
    return clean(f"{words}{where}{rank}"), unit


def figure_name(name: str) -> str:
    """`peak_memory_bytes` reads "peak memory": the value carries the unit."""
    if name in _NAMES:
        return _NAMES[name]
    for ending in ("_flops_per_s", "_bytes_per_s", "_per_s", "_bytes", "_days", "_percent", "_s"):
        name = name.removesuffix(ending)
    return formatting.words(name)
