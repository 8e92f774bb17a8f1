"""Time series as rows of compressed chunks.

A chunk holds up to 600 samples: their times since the chunk's first (`t0_s`) and their values, as
little-endian float32, compressed by zlib. Values keep 24 bits, a relative error under 1e-7; times
keep better than a microsecond within a chunk of ten seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from cubemesh.schema.series import Series

CHUNK_SAMPLES = 600


@dataclass(frozen=True)
class Chunk:
    """One row of the table `series`, but for its run."""

    name: str
    rank: int
    device: str
    chunk: int
    t0_s: float
    samples: int
    data: bytes


def to_chunks(series: Series) -> Iterator[Chunk]:
    """A series as rows; an empty series is one empty row, so that its name is stored."""
    times = np.asarray(series.times_s, dtype=np.float64)
    values = np.asarray(series.values, dtype=np.float64).astype("<f4")
    for number, start in enumerate(range(0, max(1, times.size), CHUNK_SAMPLES)):
        part = slice(start, start + CHUNK_SAMPLES)
        t0_s = float(times[start]) if times.size else 0.0
        numbers = (times[part] - t0_s).astype("<f4").tobytes() + values[part].tobytes()
        yield Chunk(
            name=series.name,
            rank=series.rank,
            device=series.device,
            chunk=number,
            t0_s=t0_s,
            samples=len(values[part]),
            data=zlib.compress(numbers),
        )


def from_chunks(chunks: Iterable[Chunk]) -> list[Series]:
    """The series that `chunks` hold, in the order of name, rank and device."""
    ordered = sorted(chunks, key=lambda c: (c.name, c.rank, c.device, c.chunk))
    return [
        _joined(list(parts))
        for _, parts in groupby(ordered, key=lambda c: (c.name, c.rank, c.device))
    ]


def _joined(parts: list[Chunk]) -> Series:
    times: list[float] = []
    values: list[float] = []
    for part in parts:
        numbers = np.frombuffer(zlib.decompress(part.data), dtype="<f4").astype(np.float64)
        times += (part.t0_s + numbers[: part.samples]).tolist()
        values += numbers[part.samples :].tolist()
    first = parts[0]
    return Series(
        name=first.name,
        rank=first.rank,
        device=first.device,
        times_s=tuple(times),
        values=tuple(values),
    )
