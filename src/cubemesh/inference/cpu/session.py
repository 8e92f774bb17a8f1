"""Session of a program in bytes: which images are computed together, where each array is in memory,
and the network in C++ that runs all of it.

A segment of steps runs for a group of images at a time whose arrays fit in the L2, then for the
next group; only what a later segment reads is stored for all images. Arrays share memory where
their lives do not overlap.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.cpu.program import (
    ByteArray,
    ByteProgram,
    NormStep,
    ProductStep,
    QuantizeStep,
    Step,
)
from cubemesh.inference.lowering import AddStep, PoolStep
from cubemesh.kernels.cpu.int8 import library as kernels
from cubemesh.kernels.cpu.int8.library import Kind
from cubemesh.kernels.window import Window

ALIGNMENT = 64
L2_BYTES = 1 << 20
"""Of a core of a Zen 4 processor; one of a Xeon with AMX has twice as much."""
MOST_BYTES = 1 << 32
"""Of the arrays and results of all images of a batch."""
LEAST_WORK = 32_000_000
"""Multiply-adds that are worth a thread: some 0.2 ms of VNNI."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Steps `first` to `last` − 1, for `group` images at a time."""

    first: int
    last: int
    group: int


class CpuSession:
    """A program, ready to run at one batch size. Nothing is allocated after it is made."""

    def __init__(
        self,
        program: ByteProgram,
        batch: int,
        threads: int,
        instructions: str = "",
        l2_bytes: int = L2_BYTES,
        least_work: int = LEAST_WORK,
    ) -> None:
        """`threads`: at most so many; a network with less than `least_work` for each takes fewer.
        `instructions`: `vnni`, `amx` or `emulated-amx`, by default the best of the processor.
        ValueError where it has none of them, and for arrays of more than `MOST_BYTES`."""
        self.program, self.batch = program, batch
        self._numbers = {name: at for at, name in enumerate(program.arrays)}
        self.instructions = kernels.choose(instructions)
        threads = min(threads, max(1, batch * multiply_adds(program) // least_work))
        self.threads = threads
        images = -(-batch // min(batch, threads))
        self.segments = segments(program, images, l2_bytes)
        places, arena = memory(program, self.segments, images)
        results = sum(program.arrays[name].image_bytes for name, _ in program.outputs)
        if min(batch, threads) * arena + batch * results > MOST_BYTES:
            raise ValueError(f"its arrays for a batch of {batch} exceed {MOST_BYTES:,} bytes")
        self._stored = []
        """The results as they are computed: (images, height, width, channels)."""
        self._outputs = []
        for name, flat in program.outputs:
            own = program.arrays[name]
            stored = np.zeros((batch, own.height, own.width, own.channels), np.float32)
            shape = shape_of(own, batch, flat)
            one_pixel = own.height * own.width == 1
            self._stored.append(stored)
            self._outputs.append(
                stored.reshape(shape) if one_pixel else np.empty(shape, np.float32)
            )
        self._network = kernels.Network(
            arrays=[self._array(a, places) for a in program.arrays.values()],
            steps=[self._step(step) for step in program.steps],
            segments=[(s.first, s.last, s.group) for s in self.segments],
            batch=batch,
            threads=threads,
            tiles=self.instructions != "vnni",
            shape=program.input_shape,
            arena_bytes=arena,
            outputs=self._stored,
        )
        self._close = weakref.finalize(self, self._network.close)

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Array]:
        """See `Session`."""
        given = inputs[self.program.input]
        if given.shape != (self.batch, *self.program.input_shape) or given.dtype != np.float32:
            raise ValueError(f"{self.program.input} has the shape {given.shape}")
        self._network.run(np.ascontiguousarray(given))
        for stored, output in zip(self._stored, self._outputs, strict=True):
            if not np.shares_memory(stored, output):
                planes = stored.transpose(0, 3, 1, 2)
                output.reshape(planes.shape)[...] = planes
        return self._outputs

    def _array(self, own: ByteArray, places: Mapping[str, tuple[int, bool]]) -> Mapping[str, int]:
        names = [name for name, _ in self.program.outputs]
        start, whole = places.get(own.owner, (0, True))
        return {
            "height": own.height,
            "width": own.width,
            "channels": own.channels,
            "pitch": own.pitch,
            "start": start + own.offset,
            "image_bytes": own.image_bytes,
            "whole": whole,
            "output": names.index(own.name) if own.floats else -1,
            "floats": own.floats,
            "zero": own.zero,
        }

    def _step(self, step: Step) -> Mapping[str, object]:
        found: dict[str, Any]
        arrays, numbers = self.program.arrays, self._numbers
        y = arrays[step.y]
        common: dict[str, Any] = {"y": numbers[step.y], "low": y.zero if step.relu else -1}
        if isinstance(step, QuantizeStep):
            found = {"kind": Kind.IMAGE, "top": step.top, "left": step.left, "fold": step.fold}
            found["factor"] = y.scale
        elif isinstance(step, ProductStep):
            found = {"kind": Kind.CONV, **window_numbers(step.window)} | self._product(step)
        elif isinstance(step, AddStep):
            x, other = arrays[step.x], arrays[step.other]
            one, second = ratio(x.scale, y.scale), ratio(other.scale, y.scale)
            found = {"kind": Kind.SUM, "other": numbers[step.other], "factor": one}
            found["other_factor"] = second
            found["offset"] = np.float32(-(x.zero * float(one) + other.zero * float(second)))
        elif isinstance(step, NormStep):
            found = {"kind": Kind.NORM, "size": step.size, **window_numbers(step.window)}
            found["multipliers"] = norm_table(step, arrays[step.x].scale, y.scale)
        else:
            found = self._pool(step)
        if step.reads:
            found["x"] = numbers[step.reads[0]]
        return common | found

    def _product(self, step: ProductStep) -> dict[str, object]:
        x, y = self.program.arrays[step.x], self.program.arrays[step.y]
        found: dict[str, object] = {
            "row_bytes": step.weights.shape[2],
            "weights": step.weights,
            "multipliers": multipliers(step, x, y),
            "biases": whole_biases(step, x),
        }
        if step.residual:
            other = self.program.arrays[step.residual]
            factor = ratio(other.scale, y.scale)
            found["other"] = self._numbers[step.residual]
            found["other_factor"] = factor
            found["offset"] = np.float32(-other.zero * float(factor))
        return found

    def _pool(self, step: PoolStep) -> dict[str, object]:
        x, y = self.program.arrays[step.x], self.program.arrays[step.y]
        found = window_numbers(step.window)
        if not step.average:
            return {"kind": Kind.MAX_POOL, "factor": ratio(x.scale, y.scale)} | found
        return {"kind": Kind.AVERAGE_POOL, "multipliers": mean_table(step, x, y)} | found


def multipliers(step: ProductStep, x: ByteArray, y: ByteArray) -> Array:
    """What the sums of each output channel are multiplied with, as ONNX Runtime computes it."""
    steps = np.float32(x.scale) * step.scales
    return np.asarray(steps if y.floats else steps / np.float32(y.scale), np.float32)


def whole_biases(step: ProductStep, x: ByteArray) -> Array:
    """With what sums of the stored bytes begin: the bias, less the part of the zero point."""
    sums = step.weights.sum(axis=(1, 2), dtype=np.int64)
    limits = np.iinfo(np.int32)
    found: Array = (step.biases - x.zero * sums).clip(limits.min, limits.max).astype(np.int32)
    return found


def mean_table(step: PoolStep, x: ByteArray, y: ByteArray) -> Array:
    """By what the sum of a window is multiplied, by the number of its pixels inside the image."""
    counts = np.arange(step.window.kernel[0] * step.window.kernel[1] + 1, dtype=np.float64)
    divisors = np.full_like(counts, step.divisor) if step.divisor else np.maximum(counts, 1)
    return (x.scale / (y.scale * divisors)).astype(np.float32)


def norm_table(step: NormStep, x_scale: float, y_scale: float) -> Array:
    """By what a channel is multiplied, by the sum of squares of its neighbours' bytes."""
    squares = np.arange(step.count * 255**2 + 1, dtype=np.float64) * x_scale**2
    base = step.bias + step.alpha / step.count * squares
    found: Array = (x_scale / y_scale * base**-step.beta).astype(np.float32)
    return found


def ratio(one: float, other: float) -> np.float32:
    """The quotient of two scales."""
    return np.float32(np.float32(one) / np.float32(other))


def window_numbers(window: Window) -> dict[str, object]:
    """A window as C++ reads it."""
    return {
        **dict(zip(("kernel_h", "kernel_w"), window.kernel, strict=True)),
        **dict(zip(("stride_h", "stride_w"), window.stride, strict=True)),
        **dict(zip(("top", "left"), window.pad, strict=True)),
        **dict(zip(("dilation_h", "dilation_w"), window.dilation, strict=True)),
    }


def shape_of(array: ByteArray, batch: int, flat: bool) -> tuple[int, ...]:
    """The shape of a result for the caller."""
    if flat:
        return batch, array.channels * array.height * array.width
    return batch, array.channels, array.height, array.width


# Which images, and where


def multiply_adds(program: ByteProgram) -> int:
    """Of the convolutions and products, for an image."""
    found = 0
    for step in program.steps:
        if isinstance(step, ProductStep):
            y = program.arrays[step.y]
            found += y.height * y.width * int(step.weights.size)
    return found


def segments(program: ByteProgram, images: int, l2_bytes: int) -> tuple[Segment, ...]:
    """Segments in whose groups the arrays of each step fit in the L2, at most `images` in one."""
    groups = []
    for step in program.steps:
        used = sum(program.arrays[name].image_bytes for name in (*step.reads, step.y))
        group = 1
        while group < images and 2 * group * used <= l2_bytes:
            group *= 2
        groups.append(min(group, images))
    for at in reversed(range(len(groups) - 1)):
        groups[at] = min(groups[at], groups[at + 1])
    found: list[Segment] = []
    for at, group in enumerate(groups):
        if found and found[-1].group == group:
            found[-1] = Segment(first=found[-1].first, last=at + 1, group=group)
        else:
            found.append(Segment(first=at, last=at + 1, group=group))
    return tuple(found)


def memory(
    program: ByteProgram, parts: Sequence[Segment], images: int
) -> tuple[dict[str, tuple[int, bool]], int]:
    """Where each buffer begins and whether it holds all images, and the bytes of all of them."""
    lives: dict[str, list[int]] = {}
    for at, step in enumerate(program.steps):
        for name in (*step.reads, step.y):
            if not program.arrays[name].floats:
                lives.setdefault(program.arrays[name].owner, []).append(at)
    bounds: dict[str, tuple[int, int, int, bool]] = {}  # bytes, first, last, whole
    for owner, steps in lives.items():
        used = {n for n, part in enumerate(parts) for at in steps if part.first <= at < part.last}
        whole = len(used) > 1
        group = images if whole else parts[min(used)].group
        first = parts[min(used)].first if whole else min(steps)
        last = parts[max(used)].last - 1 if whole else max(steps)
        size = group * program.arrays[owner].image_bytes + ALIGNMENT
        bounds[owner] = (-(-size // ALIGNMENT) * ALIGNMENT, first, last, whole)
    places: dict[str, tuple[int, bool]] = {}
    end = 0
    for owner, (size, first, last, whole) in sorted(bounds.items(), key=lambda one: -one[1][0]):
        taken = sorted(
            (places[other][0], places[other][0] + bounds[other][0])
            for other in places
            if bounds[other][1] <= last and first <= bounds[other][2]
        )
        start = 0
        for low, high in taken:
            if start + size <= low:
                break
            start = max(start, high)
        places[owner] = (start, whole)
        end = max(end, start + size)
    return places, end
