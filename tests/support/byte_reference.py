"""A program in bytes in NumPy: exact sums, and the roundings of the kernels."""

import numpy as np

from cubemesh.inference.cpu.program import NormStep, ProductStep, QuantizeStep
from cubemesh.inference.cpu.session import (
    mean_table,
    multipliers,
    norm_table,
    ratio,
    shape_of,
    whole_biases,
)
from cubemesh.inference.lowering import AddStep, PoolStep


def run_program(program, images):
    """The outputs of a program for (images, channels, height, width), and its arrays in bytes."""
    machine = _Machine(program, images)
    for step in program.steps:
        machine.run(step)
    found = []
    for name, flat in program.outputs:
        planes = machine.read(name).transpose(0, 3, 1, 2)
        found.append(planes.reshape(shape_of(program.arrays[name], len(images), flat)))
    return found


def fused(a, b, c):
    """a · b + c with one rounding: the product of two float32 is exact in float64."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


class _Machine:
    def __init__(self, program, images):
        self.program, self.images = program, images
        self.owners = {}

    def view(self, name):
        own = self.program.arrays[name]
        if own.owner not in self.owners:
            shape = (len(self.images), own.height, own.width, own.pitch)
            self.owners[own.owner] = np.zeros(shape, np.float32 if own.floats else np.int64)
        return self.owners[own.owner][..., own.offset : own.offset + own.channels]

    def read(self, name):
        return self.view(name).copy()

    def write(self, step, real):
        own = self.program.arrays[step.y]
        if own.floats:
            self.view(step.y)[...] = np.maximum(real, 0) if step.relu else real
            return
        low = own.zero if step.relu else 0
        self.view(step.y)[...] = (np.rint(real).astype(np.int64) + own.zero).clip(low, 255)

    def run(self, step):
        arrays = self.program.arrays
        y = arrays[step.y]
        if isinstance(step, QuantizeStep):
            real = self.image(step, y)
        elif isinstance(step, ProductStep):
            real = self.product(step, y)
        elif isinstance(step, PoolStep):
            real = self.pool(step, y)
        elif isinstance(step, AddStep):
            real = self.sum(step.x, ratio(arrays[step.x].scale, y.scale), step.other, y)
        else:
            assert isinstance(step, NormStep)
            real = self.norm(step, y)
        if real is not None:
            self.write(step, real)

    def image(self, step, y):
        bytes_ = (np.rint(self.images / np.float32(y.scale)) + y.zero).clip(0, 255)
        count, channels, height, width = self.images.shape
        shape = (count, y.height * step.fold, y.width * step.fold, channels)
        whole = np.full(shape, y.zero, np.int64)
        whole[:, step.top : step.top + height, step.left : step.left + width] = bytes_.transpose(
            0, 2, 3, 1
        )
        blocks = whole.reshape(count, y.height, step.fold, y.width, step.fold, channels)
        self.view(step.y)[...] = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(
            count, y.height, y.width, -1
        )

    def product(self, step, y):
        x = self.program.arrays[step.x]
        taps = step.window.kernel[0] * step.window.kernel[1]
        assert step.weights.shape[1] == taps
        given = self.owners[x.owner]
        rows = given.reshape(len(given), -1)  # a tap may read on into the next pixels
        sums = np.zeros((len(given), y.height, y.width, len(step.weights)), np.int64)
        sums += whole_biases(step, x)
        for tap in range(taps):
            weights = step.weights[:, tap].astype(np.int64)
            for h in range(y.height):
                for w in range(y.width):
                    row = h * step.window.stride[0] - step.window.pad[0]
                    row += tap // step.window.kernel[1] * step.window.dilation[0]
                    column = w * step.window.stride[1] - step.window.pad[1]
                    column += tap % step.window.kernel[1] * step.window.dilation[1]
                    if 0 <= row < x.height and 0 <= column < x.width:
                        start = (row * x.width + column) * x.pitch + x.offset
                        read = rows[:, start : start + weights.shape[1]]
                        sums[:, h, w] += read @ weights.T
                    else:
                        sums[:, h, w] += x.zero * weights.sum(axis=1)
        factors = multipliers(step, x, y)
        if not step.residual:
            return sums.astype(np.float32) * factors
        other = self.program.arrays[step.residual]
        factor = ratio(other.scale, y.scale)
        offset = np.float32(-other.zero * float(factor))
        return fused(
            sums.astype(np.float32), factors, fused(self.read(step.residual), factor, offset)
        )

    def sum(self, x_name, x_factor, other_name, y):
        x, other = (self.program.arrays[name] for name in (x_name, other_name))
        factor = ratio(other.scale, y.scale)
        offset = np.float32(-(x.zero * float(x_factor) + other.zero * float(factor)))
        return fused(self.read(x_name), x_factor, fused(self.read(other_name), factor, offset))

    def pool(self, step, y):
        x = self.program.arrays[step.x]
        given = self.read(step.x)
        real = np.zeros((len(given), y.height, y.width, y.channels), np.float32)
        table = mean_table(step, x, y)
        for h in range(y.height):
            for w in range(y.width):
                window = given[:, *self.reach(step.window, h, w, x)]
                if step.average:
                    pixels = window.shape[1] * window.shape[2]
                    sums = window.sum(axis=(1, 2)) - pixels * x.zero
                    real[:, h, w] = sums.astype(np.float32) * table[pixels]
                else:
                    most = (window.max(axis=(1, 2)) - x.zero).astype(np.float32)
                    real[:, h, w] = most * ratio(x.scale, y.scale)
        return real

    @staticmethod
    def reach(window, h, w, x):
        top = h * window.stride[0] - window.pad[0]
        left = w * window.stride[1] - window.pad[1]
        return (
            slice(max(0, top), min(x.height, top + window.kernel[0])),
            slice(max(0, left), min(x.width, left + window.kernel[1])),
        )

    def norm(self, step, y):
        x = self.program.arrays[step.x]
        given = self.read(step.x) - x.zero
        if step.size == 1:
            sums = np.zeros_like(given)
            for h in range(y.height):
                for w in range(y.width):
                    window = given[:, *self.reach(step.window, h, w, x)]
                    sums[:, h, w] = (window**2).sum(axis=(1, 2))
            return given.astype(np.float32) * norm_table(step, x.scale, y.scale)[sums]
        before = (step.size - 1) // 2
        more = np.pad(given**2, ((0, 0), (0, 0), (0, 0), (before, step.size - 1 - before)))
        sums = sum(more[..., n : n + x.channels] for n in range(step.size))
        return given.astype(np.float32) * norm_table(step, x.scale, y.scale)[sums]
