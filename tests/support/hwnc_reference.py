"""A device program in NumPy: what the kernels compute, with exact sums and without rounding to
fp16."""

import numpy as np

from cubemesh.inference.gpu.program import NOWHERE, ConvStep
from cubemesh.inference.lowering import AddStep, PoolStep


def run_program(program, images):
    """The outputs of a program for (batch, channels, height, width)."""
    machine = _Machine(program, len(images))
    for step in program.steps:
        machine.run(step, images)
    found = []
    for name, flat in program.outputs:
        scores = machine.network_channels(name)
        found.append(scores.reshape(len(scores), -1) if flat else scores)
    return found


class _Machine:
    def __init__(self, program, batch):
        self.program, self.batch = program, batch
        # a word of eight bytes for each byte, so that fp16 arrays can hold more than they can here
        self.buffers = [np.full(size * batch, np.nan) for size in program.buffers]

    def view(self, name):
        """(height, width, batch, channels), as stored."""
        own = self.program.arrays[name]
        rows = own.height * own.width * self.batch
        whole = self.buffers[own.buffer][: rows * own.row].reshape(rows, own.row)
        if own.line_pixels:
            return self.windows(whole.reshape(own.height, own.width, self.batch, own.row), own)
        part = whole[:, own.offset : own.offset + own.channels]
        return part.reshape(own.height, own.width, self.batch, own.channels)

    def windows(self, pixels, own):
        """The channels of each window as those of its first pixel; what lies beyond the last line
        or pixel is 0."""
        lines = own.channels // own.row // own.line_pixels
        more = np.pad(pixels, ((0, lines), (0, own.line_pixels), (0, 0), (0, 0)))
        parts = [
            more[line : line + own.height, start : start + own.width]
            for line in range(lines)
            for start in range(own.line_pixels)
        ]
        return np.concatenate(parts, axis=3)

    def read(self, name):
        """Real numbers."""
        own = self.program.arrays[name]
        stored = self.view(name)
        assert not np.isnan(stored).any(), f"{name} is read before it is written"
        if own.quantized is None:
            return stored
        return (stored - own.quantized.zero) * own.quantized.scale

    def write(self, name, real):
        own = self.program.arrays[name]
        if own.quantized is not None:
            real = np.rint(real / own.quantized.scale + own.quantized.zero).clip(-128, 127)
        rows = own.height * own.width * self.batch
        whole = self.buffers[own.buffer][: rows * own.row].reshape(rows, own.row)
        channels = min(own.row, own.channels)
        whole[:, own.offset : own.offset + channels] = real.reshape(rows, channels)

    def network_channels(self, name):
        own = self.program.arrays[name]
        wanted = [at for at, slot in enumerate(own.slots) if slot != NOWHERE]
        return self.read(name).transpose(2, 3, 0, 1)[:, wanted]

    def run(self, step, images):
        y = self.program.arrays[step.y]
        if isinstance(step, ConvStep):
            real = self.convolution(step, y)
        elif isinstance(step, PoolStep):
            real = self.pool(step, y)
        elif isinstance(step, AddStep):
            real = self.read(step.x) + self.read(step.other)
        else:
            real = self.image(step, y, images)
        if getattr(step, "relu", False):
            real = np.maximum(real, 0)
        self.write(step.y, real)

    def convolution(self, step, y):
        x = self.read(step.x)
        quantized = self.program.arrays[step.x].quantized
        scales = step.scales / (1 if quantized is None else quantized.scale)
        weights = step.weights.astype(np.float64) * scales[None, :, None]
        real = np.zeros((y.height, y.width, self.batch, y.channels)) + step.biases
        for at, rows, columns, tap in self.taps(step.window, x, y):
            real[at] += x[rows, columns] @ weights[tap].T
        if step.projection is not None:
            real += self.projection(step.projection, y)
        return real + (self.read(step.residual) if step.residual else 0)

    def projection(self, part, y):
        x = self.read(part.x)[:: part.stride[0], :: part.stride[1]][: y.height, : y.width]
        quantized = self.program.arrays[part.x].quantized
        scales = part.scales / (1 if quantized is None else quantized.scale)
        return x @ (part.weights[0].astype(np.float64) * scales[:, None]).T

    def pool(self, step, y):
        x = self.read(step.x)
        shape = (y.height, y.width, self.batch, x.shape[3])
        total, count = np.zeros(shape), np.zeros((y.height, y.width, 1, 1))
        largest = np.full(shape, -np.inf)
        for at, rows, columns, _ in self.taps(step.window, x, y):
            here = x[rows, columns]
            total[at] += here
            count[at] += 1
            largest[at] = np.maximum(largest[at], here)
        return total / (step.divisor or count) if step.average else largest

    def taps(self, window, x, y):
        """Pixels of the result for which a tap is inside the image, the pixels that it reads
        there, and its number."""
        for h in range(window.kernel[0]):
            for w in range(window.kernel[1]):
                rows = np.arange(y.height) * window.stride[0] - window.pad[0]
                rows = rows + h * window.dilation[0]
                columns = np.arange(y.width) * window.stride[1] - window.pad[1]
                columns = columns + w * window.dilation[1]
                in_h = np.flatnonzero((rows >= 0) & (rows < x.shape[0]))
                in_w = np.flatnonzero((columns >= 0) & (columns < x.shape[1]))
                at, there = np.ix_(in_h, in_w), np.ix_(rows[in_h], columns[in_w])
                yield at, *there, h * window.kernel[1] + w

    def image(self, step, y, images):
        fold = step.fold
        real = np.zeros((y.height * fold, y.width * fold, self.batch, 4))
        pixels = images.transpose(2, 3, 0, 1)
        pixels = pixels[: len(real) - step.top, : real.shape[1] - step.left]
        height, width, _, channels = pixels.shape
        real[step.top : step.top + height, step.left : step.left + width, :, :channels] = pixels
        blocks = real.reshape(y.height, fold, y.width, fold, self.batch, 4)
        return blocks.transpose(0, 2, 4, 1, 3, 5).reshape(y.height, y.width, self.batch, y.row)
