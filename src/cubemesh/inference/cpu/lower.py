"""Lowering: from a quantized graph of operators to a program in bytes.

A convolution takes the residual sum and the ReLU that follow it, and is not rounded in between; the
parts of a concatenation are written where they belong; views cost nothing. What a graph leaves in
fp32 between two steps is refused by name, and so are operators without a kernel; only means get the
scale of what they average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
from cubemesh.inference.lowering import AddStep, Lowering, PoolStep, Value, kernel_of
from cubemesh.inference.passes.rewrite import integer, integers, number
from cubemesh.inference.quantization.quantized_graph import (
    NotLowered,
    Quantized,
    Weights,
    without_quantizations,
)
from cubemesh.kernels.window import Pair, Window
from cubemesh.onnx.graph import Graph, Operator

MOST_NORMALIZED = 15
"""Squares in a mean of response normalization: its table has 255² entries for each."""
MOST_IMAGE_BYTES = (1 << 31) - 1
"""Of an array: where a tap reads has 32 bits."""
MOST_TABLE_BYTES = 1 << 30
"""Of all packed weights and tables of a network."""


@dataclass(frozen=True, kw_only=True)
class _Norm:
    """Operators that are a response normalization within channels, the division last."""

    operators: tuple[str, ...]
    step: NormStep


@dataclass(kw_only=True)
class _Lowering(Lowering[Value, QuantizeStep | ProductStep | NormStep]):
    copies: dict[tuple[object, ...], Value] = field(default_factory=dict)
    """Copies in bytes of the network's input, by their borders and sizes."""

    def lower(self) -> ByteProgram:
        graph = self.source.graph
        given, shape = self.image()
        if given not in self.scales:
            raise NotLowered("its input is not quantized: these kernels compute in 8-bit integers")
        channels, height, width = shape
        self.values[given] = Value(name=given, height=height, width=width, channels=channels)
        joined = {name: norm for norm in _norms(graph) for name in norm.operators}
        for operator in graph.operators:
            if operator.name in joined:
                self.norm(operator, joined[operator.name])
            else:
                kernel_of(_KERNELS, operator)(self, operator)
        outputs = self.results()
        arrays = self.arrays({name for name, _ in outputs})
        steps = tuple(_with_long_rows(step, arrays) for step in self.steps)
        if sum(_table_bytes(step, arrays) for step in steps) > MOST_TABLE_BYTES:
            raise NotLowered(f"its tables have more than {MOST_TABLE_BYTES:,} bytes")
        return ByteProgram(
            network=graph.name,
            input=given,
            input_shape=shape,
            steps=steps,
            arrays=arrays,
            outputs=outputs,
        )

    def scale(self, name: str) -> Quantized | None:
        """The scale of a value; of a mean without one, that of what it averages."""
        while name not in self.scales and name in self.step_of:
            step = self.steps[self.step_of[name]]
            if not isinstance(step, PoolStep) or step.y != name:
                break
            name = step.x
        return self.scales.get(name)

    def join(self, step: Step, joined: Step) -> None:
        """Replace a step by one that computes what follows it too, in its scale where the result
        has none."""
        super().join(step, joined)
        if step.y in self.scales:
            self.scales.setdefault(joined.y, self.scales[step.y])

    def norm(self, operator: Operator, norm: _Norm) -> None:
        """Add a normalization within channels where its last operator is."""
        if operator.name != norm.operators[-1]:
            return
        value = self.computed(operator)
        step = replace(norm.step, x=value.name, y=operator.name)
        self.add(step, replace(value, name=operator.name, parent="", offset=0))

    def arrays(self, outputs: set[str]) -> dict[str, ByteArray]:
        """The arrays of all values that steps compute. NotLowered for one without a scale that is
        no result."""
        found = {}
        producers = {step.y: step for step in self.steps}
        for name, value in self.values.items():
            if name not in self.step_of:
                continue
            scale = None if name in outputs and name not in self.scales else self.scale(name)
            step = producers.get(name)
            owner, offset = self.owner(name)
            if scale is None:
                whole = isinstance(step, (ProductStep, PoolStep)) and owner == name
                if name not in outputs or not whole or _has_residual(step):
                    raise NotLowered(f"{name} is not in 8 bits")
                if isinstance(step, PoolStep) and not step.average:
                    raise NotLowered(f"its result {name} is a maximum")
            elif name in outputs:
                raise NotLowered(f"its result {name} is in 8 bits")
            found[name] = ByteArray(
                name=name,
                height=value.height,
                width=value.width,
                channels=value.channels,
                owner=owner,
                offset=offset,
                pitch=self.values[owner].channels,
                scale=1.0 if scale is None else scale.scale,
                zero=0 if scale is None else scale.zero + 128,
                floats=scale is None,
            )
            if found[name].image_bytes > MOST_IMAGE_BYTES:
                raise NotLowered(f"{name} has more than {MOST_IMAGE_BYTES:,} bytes")
        read_whole = [n for step in self.steps for n in step.reads if found[n].floats]
        if read_whole:
            raise NotLowered(f"{read_whole[0]} is used both as a result and in 8 bits")
        return found


def _table_bytes(step: Step, arrays: dict[str, ByteArray]) -> int:
    """Of what C++ makes for a step: weights in whole registers, where each tap reads, factors of
    means."""
    if isinstance(step, ProductStep):
        outputs, taps, row = (int(length) for length in step.weights.shape)
        y = arrays[step.y]
        return taps * (-(-outputs // 64) * 64 * -(-row // 64) * 64 + 4 * y.height * y.width)
    if isinstance(step, NormStep):
        return 4 * step.count * 255**2
    return 4 * math.prod(step.window.kernel) if isinstance(step, PoolStep) else 0


def _has_residual(step: Step | None) -> bool:
    return isinstance(step, ProductStep) and bool(step.residual)


def _with_long_rows(step: Step, arrays: dict[str, ByteArray]) -> Step:
    """A convolution whose taps of a line, or of all lines, follow one another in memory, as one
    with fewer taps of more bytes."""
    if not isinstance(step, ProductStep):
        return step
    x, y, window = arrays[step.x], arrays[step.y], step.window
    (kernel_h, kernel_w), (stride_h, stride_w) = window.kernel, window.stride
    outputs, channels = len(step.weights), x.channels
    inside = window.pad[1] == 0 and (y.width - 1) * stride_w + kernel_w <= x.width
    if kernel_w > 1 and inside and window.dilation[1] == 1 and x.pitch == channels:
        weights = step.weights.reshape(outputs, kernel_h, kernel_w * channels)
        kernel_w = 1
    else:
        weights = step.weights
    lines = window.pad[0] == 0 and (y.height - 1) * stride_h + kernel_h <= x.height
    whole = kernel_w == 1 and weights.shape[2] == x.width * x.pitch
    if whole and lines and window.dilation[0] == 1:
        weights, kernel_h = weights.reshape(outputs, 1, -1), 1
    return replace(step, weights=weights, window=replace(window, kernel=(kernel_h, kernel_w)))


def _norms(graph: Graph) -> list[_Norm]:
    """The normalizations x / (bias + alpha · mean of x² in a window)^beta, as the exporter writes
    them."""
    found = []
    for division in graph.operators:
        if division.kind != "Div" or len(division.inputs) != 2:
            continue
        chain, constants = [division], []
        for kind in ("Pow", "Add", "Mul", "AveragePool", "Mul"):
            below = graph.producers.get(chain[-1].inputs[1 if kind == "Pow" else 0])
            if below is None or below.kind != kind or graph.sole_consumer(below.name) is None:
                break
            chain.append(below)
            if kind in ("Pow", "Add", "Mul") and below.inputs[0] != below.inputs[-1]:
                constant = graph.constant(below.inputs[1])
                if constant is None or constant.size != 1:
                    break
                constants.append(float(constant.reshape(())))
        square, pool = chain[-1], chain[-2]
        kernel = integers(pool, "kernel_shape")
        if (
            len(chain) != 6
            or len(constants) != 3
            or set(square.inputs) != {division.inputs[0]}
            or integers(pool, "strides", (1, 1)) != (1, 1)
            or integers(pool, "pads", (0, 0, 0, 0)) != tuple(n // 2 for n in (*kernel, *kernel))
            or not integer(pool, "count_include_pad", 0)
            or len(kernel) != 2
            or min(kernel) < 1
            or not 1 < kernel[0] * kernel[1] <= MOST_NORMALIZED
            or not all(n % 2 for n in kernel)
        ):
            continue
        beta, bias, alpha = constants
        window = Window(kernel=(kernel[0], kernel[1]), pad=(kernel[0] // 2, kernel[1] // 2))
        step = NormStep(x="", y="", window=window, alpha=alpha, beta=beta, bias=bias)
        found.append(_Norm(operators=tuple(o.name for o in reversed(chain)), step=step))
    return found


# Operators


def _conv(lowering: _Lowering, operator: Operator) -> None:
    _product(lowering, operator, *lowering.convolution(operator))


def _gemm(lowering: _Lowering, operator: Operator) -> None:
    _product(lowering, operator, *lowering.matrix_product(operator), flat=True)


def _product(
    lowering: _Lowering,
    operator: Operator,
    value: Value,
    weights: Weights,
    window: Window,
    size: Pair,
    *,
    flat: bool = False,
) -> None:
    """Add a convolution; one that reads the network's input reads a copy in bytes."""
    name, outputs = operator.name, weights.values.shape[0]
    if weights.scales is None or weights.axis != 0 or weights.values.dtype != np.int8:
        raise NotLowered(f"the weights of {name} are not in 8 bits")
    scale = lowering.scale(value.name)
    if scale is None:
        raise NotLowered(f"{name} has only its weights in 8 bits")
    if weights.values.shape[1] != value.channels:
        raise NotLowered(f"the shapes of {name} contradict")
    if not weights.values.size:
        raise NotLowered(f"the weights of {name} are empty")
    steps = np.float32(scale.scale) * weights.scales
    biases = np.zeros(outputs, np.int64)
    if len(operator.inputs) > 2 and operator.inputs[2]:
        biases = _whole_biases(lowering.weights(operator.inputs[2]), steps, outputs)
    values = weights.values
    if value.name not in lowering.step_of:
        value, values, window = _image(lowering, value, values, window, size)
    taps = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(outputs, -1, value.channels)
    step = ProductStep(
        x=value.name, y=name, window=window, weights=taps, scales=weights.scales, biases=biases
    )
    made = Value(name=name, height=size[0], width=size[1], channels=outputs)
    lowering.add(step, made, flat=flat)


def _whole_biases(bias: Weights, steps: Array, outputs: int) -> Array:
    """Biases in steps of the sums."""
    if bias.values.dtype == np.int32 and bias.scales is not None:
        ratio = bias.scales / np.maximum(steps, np.finfo(np.float32).tiny)
        if np.allclose(ratio, 1.0, rtol=1e-5):
            return np.broadcast_to(bias.values.reshape(-1), (outputs,)).astype(np.int64)
    real = np.broadcast_to(bias.real.reshape(-1), (outputs,)).astype(np.float64)
    return np.rint(real / steps).clip(-(2.0**30), 2.0**30).astype(np.int64)


def _image(
    lowering: _Lowering, value: Value, weights: Array, window: Window, size: Pair
) -> tuple[Value, Array, Window]:
    """The network's input in bytes with its border, and the weights and window of a convolution
    that reads it. For a stride of 2, blocks of 2 × 2 pixels are one with four times the
    channels."""
    outputs, channels, *kernel = weights.shape
    fold = 2 if (window.stride, window.dilation) == ((2, 2), (1, 1)) else 1
    pad, stride, dilation = window.pad, window.stride, window.dilation
    if fold == 2:
        kernel = [-(-length // 2) for length in kernel]
        stride = (1, 1)
    lengths = [
        max(-(-(before + given) // fold), (count - 1) * step + (taps - 1) * apart + 1)
        for before, given, count, step, taps, apart in zip(
            pad, (value.height, value.width), size, stride, kernel, dilation, strict=True
        )
    ]
    key = (value.name, pad, fold, *lengths)
    if key not in lowering.copies:
        name = f"{value.name}/bytes {pad} {fold} {lengths}"
        step = QuantizeStep(x=value.name, y=name, top=pad[0], left=pad[1], fold=fold)
        made = Value(
            name=name, height=lengths[0], width=lengths[1], channels=channels * fold * fold
        )
        lowering.scales[name] = lowering.scales[value.name]
        lowering.add(step, made)
        lowering.copies[key] = made
    if fold == 2:
        whole = np.zeros((outputs, channels, 2 * kernel[0], 2 * kernel[1]), weights.dtype)
        whole[:, :, : weights.shape[2], : weights.shape[3]] = weights
        # (outputs, channel, line, row, pixel, column) → (outputs, row · column · channel, …)
        whole = whole.reshape(outputs, channels, kernel[0], 2, kernel[1], 2)
        weights = whole.transpose(0, 3, 5, 1, 2, 4).reshape(outputs, -1, kernel[0], kernel[1])
    read = Window(kernel=(kernel[0], kernel[1]), stride=stride, dilation=dilation)
    return lowering.copies[key], weights, read


def _relu(lowering: _Lowering, operator: Operator) -> None:
    value = lowering.computed(operator)
    step = lowering.sole_step(operator.inputs[0])
    if step is None or isinstance(step, QuantizeStep):
        flat = lowering.is_flat(operator.inputs[0])
        lowering.copy(value, operator.name, relu=True, flat=flat)
        return
    lowering.join(step, replace(step, y=operator.name, relu=True))


def _add(lowering: _Lowering, operator: Operator) -> None:
    one, other = lowering.summands(operator)
    step = lowering.sole_step(one.name)
    if one is not other and isinstance(step, ProductStep) and not step.relu and not step.residual:
        lowering.join(step, replace(step, y=operator.name, residual=other.name))
        return
    made = replace(one, name=operator.name, parent="", offset=0)
    flat = lowering.is_flat(operator.inputs[0])
    lowering.add(AddStep(x=one.name, other=other.name, y=operator.name), made, flat=flat)


def _norm(lowering: _Lowering, operator: Operator) -> None:
    value, size = lowering.computed(operator), integer(operator, "size", 1)
    if not 1 <= size <= MOST_NORMALIZED:
        raise NotLowered(f"it has no kernel for LRN over {size} channels ({operator.name})")
    step = NormStep(
        x=value.name,
        y=operator.name,
        size=size,
        window=Window(),
        alpha=number(operator, "alpha", 1e-4),
        beta=number(operator, "beta", 0.75),
        bias=number(operator, "bias", 1.0),
    )
    lowering.add(step, replace(value, name=operator.name, parent="", offset=0))


def _concat(lowering: _Lowering, operator: Operator) -> None:
    parts, (height, width) = lowering.parts(operator)
    name, scale, offset = operator.name, lowering.scale(operator.name), 0
    if scale is None:
        scales = {lowering.scale(part.name) for part in parts}
        if len(scales) == 1:
            scale = scales.pop()
        if scale is None:
            raise NotLowered(f"{name} is not in 8 bits")
        lowering.scales[name] = scale
    for part in parts:
        if part.parent or lowering.scale(part.name) != scale:
            copy = f"{name}/part {offset}"
            lowering.scales[copy] = scale
            part = lowering.copy(part, copy)
        part.parent, part.offset = name, offset
        offset += part.channels
    lowering.enter(Value(name=name, height=height, width=width, channels=offset))
    lowering.step_of[name] = len(lowering.steps) - 1


_KERNELS: dict[str, Callable[[_Lowering, Operator], None]] = {
    "Add": _add,
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "LRN": _norm,
    "Relu": _relu,
}


def lower(graph: Graph) -> ByteProgram:
    """The program of a graph whose batch is free; NotLowered, naming it, for what has no kernel."""
    return _Lowering(source=without_quantizations(graph)).lower()
