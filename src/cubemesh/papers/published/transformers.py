"""Published rates of transformers trained on many devices, each with its layout and source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Literal, get_args

from cubemesh.papers.published.load import CsvRow, csv_rows

Metric = Literal["tokens/s/device", "s/step", "model TFLOP/s/device", "hardware TFLOP/s/device"]
"""The last is Megatron-LM's of 2021: it counts recomputation (arXiv:2104.04473, equation 3)."""
TABLE = "transformers.csv"


@dataclass(frozen=True, kw_only=True)
class PublishedTransformerRate:
    """One row of the table."""

    source: str
    url: str
    system: str
    """The cluster of the catalogue whose links it had."""
    device: str
    """Of the catalogue."""
    network_gbit_per_s: int | None
    """Of a system, all ports together, where it is not the cluster's."""
    devices: int
    style: str
    network: str
    """A name or sizes, as networks/transformer_sizes.py reads them."""
    sequence_length: int
    precision: str
    layout: str
    micro_batch: int
    global_batch: int
    recompute: str
    """`none`, `selective`, `full`, `full:LAYERS`, or `auto` where the source does not state it:
    as little as fits the memory."""
    attention: str
    metric: Metric
    value: float
    memory_gib: float | None
    """Peak of a device, where the source states it."""
    note: str


COLUMNS = tuple(field.name for field in fields(PublishedTransformerRate))


@cache
def transformer_rates() -> tuple[PublishedTransformerRate, ...]:
    """Every row, in the order of its file."""
    text = resources.files(__package__).joinpath(TABLE).read_text("utf-8")
    return read_transformer_rates(text, TABLE)


def read_transformer_rates(text: str, file: str) -> tuple[PublishedTransformerRate, ...]:
    """The rows of a CSV text with `COLUMNS`; DataError for one that does not fit."""
    return tuple(_read(row) for row in csv_rows(text, file, COLUMNS))


def _read(row: CsvRow) -> PublishedTransformerRate:
    value, memory = row.number("value", row.filled("value")), row.text("memory_gib")
    if value <= 0:
        raise row.wrong("value", "must be above 0")
    return PublishedTransformerRate(
        source=row.filled("source"),
        url=row.filled("url"),
        system=row.filled("system"),
        device=row.filled("device"),
        network_gbit_per_s=row.count("network_gbit_per_s", least=1),
        devices=_whole(row, "devices"),
        style=row.filled("style"),
        network=row.filled("network"),
        sequence_length=_whole(row, "sequence_length"),
        precision=row.filled("precision"),
        layout=row.filled("layout"),
        micro_batch=_whole(row, "micro_batch"),
        global_batch=_whole(row, "global_batch"),
        recompute=row.filled("recompute"),
        attention=row.filled("attention"),
        metric=row.one_of("metric", get_args(Metric)),  # type: ignore[arg-type]
        value=value,
        memory_gib=row.number("memory_gib", memory) if memory else None,
        note=row.text("note"),
    )


def _whole(row: CsvRow, name: str) -> int:
    found = row.count(name, least=1)
    if found is None:
        raise row.wrong(name, "must not be empty")
    return found
