"""Calibration: histograms of the activations of an fp32 network on calibration samples.

An engine runs the network with the observed values as further outputs, a few samples at a time. The
bins of a histogram are 2^k wide and begin at multiples of their width, so a wider range merges bins
exactly: the result depends on the samples alone, not on their order or the batch size, and a second
pass over the data is not needed. Extremes and channel means are those of all elements; of an
activation with many elements a sample, evenly spaced ones are counted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.errors import DataError, UsageError
from cubemesh.onnx.engines import Session
from cubemesh.onnx.graph import Graph
from cubemesh.onnx.writer import infer_types, serialized
from cubemesh.untrusted import quoted

BINS = 2048
"""Of a histogram. At least half of them lie between the least and the greatest value."""
MOST_OUTPUT_BYTES = 256 << 20
"""Of the observed values of one call of the engine, unless one sample has more."""
OpenSession = Callable[[bytes], Session]
"""Opens a session of an engine for the content of an ONNX file."""
MOST_COUNTED = 1 << 14
"""Elements of a sample that are counted: 256 samples then have 4 million, 419 of them above the
percentile 99.99."""
_LEAST_EXPONENT = -120
_SIGNIFICAND_BITS = 24
_CHUNK = 1 << 16
"""Elements binned at a time: they stay in the cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """Distribution of the elements of one activation."""

    exponent: int
    """A bin is 2^exponent wide."""
    first: int
    """The first bin begins at first · 2^exponent."""
    counts: NDArray[np.int64]
    """(BINS,)"""
    low: float
    """The least element."""
    high: float
    """The greatest element."""
    means: NDArray[np.float64]
    """Mean of each input channel of the product that uses the value; empty where no product does.
    """

    @property
    def width(self) -> float:
        """Of a bin."""
        return math.ldexp(1.0, self.exponent)

    @property
    def size(self) -> int:
        """Number of counted elements."""
        return int(self.counts.sum())

    @property
    def centers(self) -> NDArray[np.float64]:
        """The middle of each bin."""
        return np.asarray((self.first + np.arange(BINS) + 0.5) * self.width, np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Histograms of activations by the names of the values."""

    samples: int
    histograms: Mapping[str, Histogram]
    ranges: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Ends of the ranges found so far, by value and method: a search is not repeated."""

    def arrays(self) -> dict[str, Array]:
        """The histograms as arrays for a file, in the order of the values' names."""
        found = [self.histograms[name] for name in sorted(self.histograms)]
        return {
            "bins": np.array([(h.exponent, h.first) for h in found], np.int64).reshape(-1, 2),
            "counts": np.array([h.counts for h in found], np.int64).reshape(-1, BINS),
            "extremes": np.array([(h.low, h.high) for h in found], np.float64).reshape(-1, 2),
            "channels": np.array([h.means.size for h in found], np.int64),
            "means": np.concatenate([np.zeros(0), *(h.means for h in found)]),
        }

    @classmethod
    def from_arrays(
        cls, samples: int, names: Iterable[str], arrays: Mapping[str, Array]
    ) -> Calibration:
        """What `arrays` gave, for the same names. DataError where the arrays do not fit."""
        ordered = sorted(names)
        try:
            _check_arrays(len(ordered), arrays)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError("The stored calibration is damaged: its arrays do not fit.") from error
        ends = np.cumsum(arrays["channels"])
        means = np.split(arrays["means"], ends[:-1]) if ordered else []
        return cls(
            samples=samples,
            histograms={
                name: Histogram(
                    exponent=int(arrays["bins"][n, 0]),
                    first=int(arrays["bins"][n, 1]),
                    counts=arrays["counts"][n],
                    low=float(arrays["extremes"][n, 0]),
                    high=float(arrays["extremes"][n, 1]),
                    means=means[n],
                )
                for n, name in enumerate(ordered)
            },
        )


def _check_arrays(values: int, arrays: Mapping[str, Array]) -> None:
    """ValueError or KeyError where stored arrays are not those of `values` histograms."""
    channels = arrays["channels"]
    exponents = arrays["bins"][:, 0]
    fits = (
        arrays["bins"].shape == (values, 2)
        and arrays["counts"].shape == (values, BINS)
        and arrays["extremes"].shape == (values, 2)
        and channels.shape == (values,)
        and arrays["means"].shape == (int(channels.sum()),)
        and all(arrays[n].dtype == np.int64 for n in ("bins", "counts", "channels"))
        and bool(np.isfinite(arrays["extremes"]).all() and np.isfinite(arrays["means"]).all())
        and bool((arrays["counts"] >= 0).all() and (channels >= 0).all())
        and bool((np.abs(exponents) <= 128).all())
    )
    if not fits:
        raise ValueError("shapes, types or values of the arrays")


class HistogramBuilder:
    """Collects the elements of one activation, array by array."""

    def __init__(self, channel_axis: int | None = None) -> None:
        self._axis = channel_axis
        self._exponent = _LEAST_EXPONENT
        self._first = 0
        self._counts = np.zeros(BINS, np.int64)
        self._low, self._high = math.inf, -math.inf
        self._sums = np.zeros(0)
        self._positions = 0

    def add(self, array: Array) -> None:
        """Add an array whose first axis is that of the samples; ValueError where an element is not
        finite."""
        if not array.size:
            return
        elements = np.ascontiguousarray(array, dtype=np.float32)
        low, high = float(elements.min()), float(elements.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("NaN" if math.isnan(low) or math.isnan(high) else "infinity")
        self._widen(min(low, self._low), max(high, self._high))
        stride = counted_stride(elements.shape[1:])
        if stride > 1:
            self._count(elements.reshape(len(elements), -1)[:, ::stride].reshape(-1))
        else:
            self._count(elements.reshape(-1))
        if self._axis is not None:
            self._add_means(elements, self._axis)

    def result(self) -> Histogram:
        """The histogram so far; ValueError where no element was added."""
        if self._low > self._high:
            raise ValueError("no elements")
        return Histogram(
            exponent=self._exponent,
            first=self._first,
            counts=self._counts.copy(),
            low=self._low,
            high=self._high,
            means=self._sums / max(self._positions, 1),
        )

    def _widen(self, low: float, high: float) -> None:
        """Move and merge bins so that they reach from `low` to `high`."""
        exponent = _exponent_of(low, high)
        first = _bin_of(low, exponent)
        if self._low <= self._high and (exponent, first) != (self._exponent, self._first):
            numbers = np.flatnonzero(self._counts)
            moved = ((numbers + self._first) >> (exponent - self._exponent)) - first
            counts = np.zeros(BINS, np.int64)
            np.add.at(counts, moved, self._counts[numbers])
            self._counts = counts
        self._exponent, self._first, self._low, self._high = exponent, first, low, high

    def _count(self, elements: NDArray[np.float32]) -> None:
        per_bin, first = np.float32(math.ldexp(1.0, -self._exponent)), np.float32(self._first)
        for begin in range(0, elements.size, _CHUNK):
            scaled = elements[begin : begin + _CHUNK] * per_bin
            np.floor(scaled, out=scaled)
            scaled -= first
            self._counts += np.bincount(scaled.astype(np.intp), minlength=BINS)

    def _add_means(self, elements: NDArray[np.float32], axis: int) -> None:
        axis %= elements.ndim
        # Two steps: short sums in float32, which NumPy adds pairwise, then those in float64.
        inner = elements.sum(axis=tuple(range(axis + 1, elements.ndim)))
        sums = inner.sum(axis=tuple(range(axis)), dtype=np.float64)
        if self._positions and sums.shape != self._sums.shape:
            raise ValueError("another number of channels than before")
        self._sums = self._sums + sums if self._positions else sums
        self._positions += elements.size // sums.size


def counted_stride(shape: Sequence[int]) -> int:
    """n, where every n-th element of a sample of `shape` is counted, at most `MOST_COUNTED`. It has
    no common divisor with a length of the shape, so that no channel, row or column is left out."""
    stride = -(-math.prod(shape) // MOST_COUNTED)
    while stride > 1 and any(math.gcd(stride, length) > 1 for length in shape):
        stride += 1
    return stride


def _bin_of(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def _exponent_of(low: float, high: float) -> int:
    """The least for which bins from `low` to `high` are enough, and not finer than float32."""
    magnitude = math.frexp(max(abs(low), abs(high)))[1]
    exponent = max(_LEAST_EXPONENT, magnitude - _SIGNIFICAND_BITS)
    if high > low:
        exponent = max(exponent, math.frexp((high - low) / BINS)[1] - 1)
    while _bin_of(high, exponent) - _bin_of(low, exponent) >= BINS:
        exponent += 1
    return exponent


def calibrate(
    graph: Graph,
    open_session: OpenSession,
    batches: Iterable[Mapping[str, Array]],
    values: Iterable[str],
) -> Calibration:
    """Histograms of `values` while `open_session`'s engine runs the fp32 `graph` on `batches`,
    each a mapping from inputs to arrays.

    Batches are divided where the observed values would exceed `MOST_OUTPUT_BYTES`, unless the
    graph has a fixed batch size. UsageError for an unknown value or no samples, DataError naming
    the value that is NaN or infinite.
    """
    names = tuple(dict.fromkeys(values))
    of_inputs = {value.name for value in graph.inputs}
    computed = [name for name in names if name not in of_inputs]
    observed = observing(graph, computed)
    builders = {name: HistogramBuilder(channel_axis(graph, name)) for name in names}
    session = open_session(serialized(observed)) if computed else None
    samples = 0
    order = [value.name for value in observed.outputs]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for batch in _pieces(graph, session, batches):
            outputs: Sequence[Array] = session.run(batch) if session else ()
            found = {**batch, **dict(zip(order, outputs, strict=bool(session)))}
            added = {name: threads.submit(b.add, found[name]) for name, b in builders.items()}
            for name, one in added.items():
                try:
                    one.result()
                except ValueError as error:
                    raise DataError(
                        f"The activation {quoted(name)} of {graph.name} cannot be calibrated: it "
                        f"has {error} in samples {samples} to {samples + _samples(batch)}."
                    ) from error
            samples += _samples(batch)
    if not samples:
        raise UsageError(f"Calibration of {graph.name} needs samples, and there are none.")
    return Calibration(
        samples=samples, histograms={name: b.result() for name, b in builders.items()}
    )


def observing(graph: Graph, values: Sequence[str]) -> Graph:
    """The graph with `values` as further outputs."""
    missing = [v for v in values if v not in graph.producers]
    if missing:
        raise UsageError(f"{graph.name} has no activation {quoted(missing[0])}.")
    wanted = [v for v in values if v not in graph.output_names]
    types = infer_types(graph) if wanted else {}
    unknown = [v for v in wanted if v not in types or types[v].dtype != "float32"]
    if unknown:
        raise UsageError(f"The activation {quoted(unknown[0])} of {graph.name} is not float32.")
    return replace(graph, outputs=(*graph.outputs, *(types[v] for v in wanted)))


_CHANNEL_AXES = {"Conv": 1, "Gemm": 1, "MatMul": -1}


def channel_axis(graph: Graph, value: str) -> int | None:
    """The axis of the channels of `value` that products sum over; None where no product does, or
    two do over different ones."""
    axes = {
        _CHANNEL_AXES[user.kind]
        for user in graph.consumers.get(value, ())
        if user.kind in _CHANNEL_AXES and user.inputs[0] == value
    }
    return axes.pop() if len(axes) == 1 else None


def _samples(batch: Mapping[str, Array]) -> int:
    return len(next(iter(batch.values())))


def _pieces(
    graph: Graph, session: Session | None, batches: Iterable[Mapping[str, Array]]
) -> Iterator[Mapping[str, Array]]:
    """The batches, divided so that the outputs of each fit."""
    free = [v.name for v in graph.inputs if v.shape and isinstance(v.shape[0], str)]
    most: int | None = None
    for batch in batches:
        if session is None or len(free) < len(graph.inputs):
            yield batch
            continue
        if most is None:
            outputs: Any = session.run({name: array[:1] for name, array in batch.items()})
            most = max(1, MOST_OUTPUT_BYTES // max(1, sum(a.nbytes for a in outputs)))
        for begin in range(0, _samples(batch), most):
            yield {name: array[begin : begin + most] for name, array in batch.items()}
