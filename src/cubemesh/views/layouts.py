"""Forecasts of transformers by layout: step, parts, memory and search, as tables and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.layouts import LayoutPrediction
from cubemesh.forecast.transformers.factors import STYLES, listed
from cubemesh.forecast.transformers.search import PART_NAMES, Candidate
from cubemesh.forecast.transformers.step import LayoutForecast
from cubemesh.schema import Table
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_quantity
from cubemesh.views import terminal
from cubemesh.views.json_output import envelope
from cubemesh.views.tables import table_of_figures

MOST_CANDIDATES = 10
_GIB = 1 << 30


def layout_document(found: LayoutPrediction) -> dict[str, Any]:
    """The JSON of `cubemesh predict` with a layout."""
    search = found.search
    return envelope(
        "layout-prediction",
        **_forecast(found.forecast),
        low_s=found.forecast.step_s / found.band,
        high_s=found.forecast.step_s * found.band,
        measured={str(count): rate for count, rate in found.measured.items()},
        search=None
        if search is None
        else {
            "tried": search.tried,
            "fitting": search.fitting,
            "candidates": [
                {**_forecast(one.forecast), "reason": one.reason} for one in search.candidates
            ],
        },
        factors=to_plain(listed()),
    )


def _forecast(one: LayoutForecast) -> dict[str, Any]:
    plan = one.plan
    return {
        "network": plan.network.name,
        "parameters": plan.network.parameters(plan.sequence_length),
        "machine": plan.system.name,
        "devices": plan.layout.devices,
        "layout": str(plan.layout),
        "micro_batch": plan.micro_batch,
        "global_batch": plan.global_batch,
        "sequence_length": plan.sequence_length,
        "precision": plan.precision,
        "recompute": _recompute(one),
        "attention": plan.attention,
        "style": plan.style,
        "step_s": one.step_s,
        "samples_per_s": one.samples_per_s,
        "tokens_per_s": one.tokens_per_s,
        "model_flops_per_s_per_device": one.model_flops_per_s,
        "mfu": one.utilization,
        "limit": one.limit,
        "parts_s": dict(one.parts_s),
        "memory": {**to_plain(one.memory), "total_bytes": one.memory.total_bytes},
        "fits": one.fits,
    }


def _recompute(one: LayoutForecast) -> str:
    plan = one.plan
    if plan.recompute == "full" and 0 < plan.recompute_layers < plan.network.layers:
        return f"full, {plan.recompute_layers} of {plan.network.layers} layers"
    return plan.recompute


def print_layout(console: Console, found: LayoutPrediction) -> None:
    """The step with its parts, the memory, and the search."""
    terminal.print_table(console, _step(found))
    terminal.print_table(console, _parts(found.forecast))
    terminal.print_table(console, _memory(found.forecast))
    if found.search is not None:
        terminal.print_table(console, _search(found.search.candidates))
    for line in _notes(found):
        console.print(Text(line), soft_wrap=True)


def _step(found: LayoutPrediction) -> Table:
    one = found.forecast
    plan = one.plan
    columns = {
        "layout": "",
        "micro-batch": "",
        "recomputation": "",
        "step": "s",
        "low": "s",
        "high": "s",
        "throughput": "tokens/s",
        "per device": "tokens/s",
        "MFU": "%",
        "memory": "GiB",
        "limit": "",
    }
    row = (
        str(plan.layout),
        plan.micro_batch,
        _recompute(one),
        *(one.step_s, one.step_s / found.band, one.step_s * found.band),
        *(one.tokens_per_s, one.tokens_per_s / plan.layout.devices, 100 * one.utilization),
        one.memory.total_bytes / _GIB,
        PART_NAMES.get(one.limit, one.limit),
    )
    title = (
        f"{plan.network.name} on {plan.layout.devices} devices of {plan.system.name}, "
        f"{plan.precision}, {plan.global_batch} sequences of {plan.sequence_length} tokens per step"
    )
    return table_of_figures(title, columns, [row])


def _parts(one: LayoutForecast) -> Table:
    shown = {name: value for name, value in one.parts_s.items() if value > 0}
    columns = {"part": "", "time": "s", "share": "%"}
    rows = [(name, value, 100 * value / one.step_s) for name, value in shown.items()]
    return table_of_figures("Breakdown of the step time", columns, rows)


def _memory(one: LayoutForecast) -> Table:
    names = ("weight", "gradient", "optimizer", "activation", "library")
    columns = {**dict.fromkeys(names, "GiB"), "of the device": "GiB"}
    values = [getattr(one.memory, f"{name}_bytes") / _GIB for name in names]
    row = (*values, one.device_memory_bytes / _GIB)
    return table_of_figures("Memory per device", columns, [row])


def _search(candidates: tuple[Candidate, ...]) -> Table:
    columns = {
        "layout": "",
        "micro-batch": "",
        "recomputation": "",
        "step": "s",
        "memory": "GiB",
        "why not": "",
    }
    rows = [
        (
            str(one.forecast.plan.layout),
            one.forecast.plan.micro_batch,
            _recompute(one.forecast),
            one.forecast.step_s,
            one.forecast.memory.total_bytes / _GIB,
            one.reason or "fastest",
        )
        for one in candidates[:MOST_CANDIDATES]
    ]
    title = "Best layout for each tensor- and pipeline-parallel size"
    return table_of_figures(title, columns, rows)


def _notes(found: LayoutPrediction) -> list[str]:
    one = found.forecast
    plan = one.plan
    fitted = ", ".join(f"{count} devices" for count in found.measured)
    basis = f"Fitted to what was measured on {fitted}" if fitted else "Nothing was measured"
    notes = [
        f"Device: {one.peak_source}. Style: {STYLES[plan.style].framework}. {basis}: the band is × "
        f"{found.band:g}, nine in ten published rates."
    ]
    if found.search is not None:
        notes.append(
            f"Search: {found.search.fitting} of {found.search.tried} layouts fit the memory; "
            f"--json has the best of each of {len(found.search.candidates)} pairs of sizes."
        )
    if not one.fits:
        notes.append(
            f"Memory: {format_quantity(one.memory.total_bytes, 'B')} is close above what a device "
            "has; use recomputation, a smaller micro-batch or more devices."
        )
    return notes
