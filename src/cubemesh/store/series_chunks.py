"""Time series as rows of compressed chunks.

A chunk holds up to 600 samples: their times since the chunk's first (`t0_s`) and their values, as
little-endian float32, compressed by zlib. Values keep 24 bits, a relative error under 1e-7; times
keep better than a microsecond within a chunk of ten seconds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cubemesh.schema.series import Series
from cubemesh.store.damage import Damage, reason_of

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """A series as arrays: a twentieth of the memory, and read in a fraction of the time."""

    name: str
    rank: int
    device: str
    times_s: np.ndarray[Any, np.dtype[np.float64]]
    values: np.ndarray[Any, np.dtype[np.float64]]

    def as_series(self) -> Series:
        """The same with tuples."""
        return Series(
            name=self.name,
            rank=self.rank,
            device=self.device,
            times_s=tuple(self.times_s.tolist()),
            values=tuple(self.values.tolist()),
        )


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


def from_chunks(chunks: Iterable[Chunk]) -> tuple[list[Series], list[Damage]]:
    """The series that `chunks` hold, and those that are damaged; as `read_chunks`."""
    found, damaged = read_chunks(chunks)
    return [one.as_series() for one in found], damaged


def read_chunks(chunks: Iterable[Chunk]) -> tuple[list[Samples], list[Damage]]:
    """The series that `chunks` hold, in the order of name, rank and device, and those that are
    damaged: no zlib, of another length than declared, a chunk missing."""
    by_series: dict[tuple[str, int, str], list[Chunk]] = {}
    for chunk in chunks:
        by_series.setdefault((chunk.name, chunk.rank, chunk.device), []).append(chunk)
    found, damaged = [], []
    for (name, rank, _), parts in by_series.items():
        try:
            found.append(_joined(parts))
        except (ValueError, TypeError, zlib.error) as error:
            reason = reason_of(error)
            damaged.append(Damage(what="series", id=f"{name} of rank {rank}", reason=reason))
    return sorted(found, key=lambda s: (s.name, s.rank, s.device)), damaged


def _joined(parts: list[Chunk]) -> Samples:
    parts = sorted(parts, key=lambda part: part.chunk)
    if [part.chunk for part in parts] != list(range(len(parts))):
        raise ValueError("a chunk is missing")
    first = parts[0]
    if not (isinstance(first.name, str) and isinstance(first.device, str)):
        raise ValueError("its name is no text")
    if not isinstance(first.rank, int):
        raise ValueError("its rank is no number")
    numbers = [_numbers(part) for part in parts]
    return Samples(
        name=first.name,
        rank=first.rank,
        device=first.device,
        times_s=np.concatenate(
            [part.t0_s + n[: part.samples] for part, n in zip(parts, numbers, strict=True)]
        ),
        values=np.concatenate([n[part.samples :] for part, n in zip(parts, numbers, strict=True)]),
    )


def _numbers(part: Chunk) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Times and values of a chunk; never more is decompressed than it declares."""
    if not 0 <= part.samples <= CHUNK_SAMPLES or not math.isfinite(part.t0_s):
        raise ValueError(f"a chunk of {part.samples} samples from {part.t0_s} s")
    length = 2 * 4 * part.samples
    stream = zlib.decompressobj()
    plain = stream.decompress(part.data, length + 1)
    if len(plain) != length or not stream.eof:
        raise ValueError(f"a chunk of {part.samples} samples has not {length} bytes")
    return np.frombuffer(plain, dtype="<f4").astype(np.float64)
