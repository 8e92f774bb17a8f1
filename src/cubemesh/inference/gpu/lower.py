"""Lowering: from a graph of operators to a program of kernels in the layout HWNC.

A convolution takes the residual sum and the ReLU that follow it; the parts of a concatenation are
written where they belong; views cost nothing. Networks of convolutions, matrix products, pools,
sums and concatenations are lowered; anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cubemesh.inference.gpu.program import (
    IMAGE_ROW,
    NOWHERE,
    ConvStep,
    DeviceArray,
    DeviceProgram,
    DeviceStep,
    ImageStep,
    ProjectionPart,
)
from cubemesh.inference.lowering import AddStep, Lowering, Value, kernel_of
from cubemesh.inference.quantization.quantized_graph import (
    NotLowered,
    Weights,
    without_quantizations,
)
from cubemesh.kernels.triton.hwnc.launch import LEAST_CHANNELS
from cubemesh.kernels.window import Pair, Window
from cubemesh.onnx.graph import Graph, Operator

BYTES = {"int8": 1, "float16": 2, "float32": 4}
MOST_WINDOW = 256
"""Most channels of a window that the first convolution reads at once."""
MOST_UNFOLDED = 64
"""Most channels that a row of taps of the first convolution reads."""


@dataclass(kw_only=True, eq=False)
class _Value(Value):
    slots: tuple[int, ...] = ()
    """The channel of the network at each position, or `NOWHERE`."""
    row: int = 0
    """Channels of its rows, where these are not all of `slots`."""
    line_pixels: int = 0
    """Pixels of each row of a window, where the channels are those of a window."""


@dataclass(kw_only=True)
class _Lowering(Lowering[_Value, ImageStep | ConvStep]):
    def lower(self) -> DeviceProgram:
        given, shape = self.image()
        channels, height, width = shape
        self.values[given] = _Value(name=given, height=height, width=width, channels=channels)
        for operator in self.source.graph.operators:
            kernel_of(_KERNELS, operator)(self, operator)
        return _program(self, given, shape, self.results())

    def dtype(self, name: str) -> str:
        """How a value is stored."""
        if name in self.scales:
            return "int8"
        shown = {name, *(view for view in self.alias if self.base(view) == name)}
        if shown & self.source.graph.output_names:
            return "float32"
        return "float16"


# Operators


def _conv(lowering: _Lowering, operator: Operator) -> None:
    _product(lowering, operator, *lowering.convolution(operator))


def _gemm(lowering: _Lowering, operator: Operator) -> None:
    value, weights, window, size = lowering.matrix_product(operator)
    if weights.axis != 0:
        raise NotLowered(f"it has no kernel for this product ({operator.name})")
    _product(lowering, operator, value, weights, window, size, flat=True)


def _product(
    lowering: _Lowering,
    operator: Operator,
    value: _Value,
    weights: Weights,
    window: Window,
    size: Pair,
    *,
    flat: bool = False,
) -> None:
    """Add a convolution; one that reads the network's input reads rows of its pixels."""
    name, outputs = operator.name, weights.values.shape[0]
    if value.name not in lowering.step_of:
        value, weights, window = _image(lowering, value, weights, window, size)
    slots = _padded(outputs)
    bias = np.zeros(outputs, np.float32)
    if len(operator.inputs) > 2 and operator.inputs[2]:
        bias = np.broadcast_to(lowering.weights(operator.inputs[2]).real.reshape(-1), bias.shape)
    quantized = lowering.scales.get(value.name)
    if (quantized is not None) != (weights.scales is not None):
        raise NotLowered(f"{name} has only its weights or its input in 8 bits")
    taps = np.moveaxis(weights.values.reshape(*weights.values.shape[:2], -1), 2, 0)
    dtype = np.int8 if quantized is not None else np.float16
    stored = np.zeros((len(taps), len(slots), len(value.slots)), dtype)
    given = np.array(value.slots)
    stored[:, :outputs, given != NOWHERE] = taps[:, :, given[given != NOWHERE]]
    scales = np.ones(len(slots), np.float32)
    if quantized is not None and weights.scales is not None:
        scales[:outputs] = weights.scales * np.float32(quantized.scale)
    biases = np.zeros(len(slots), np.float32)
    biases[:outputs] = bias
    step = ConvStep(
        x=value.name, y=name, window=window, weights=stored, scales=scales, biases=biases
    )
    height, width = size
    made = _Value(name=name, height=height, width=width, channels=outputs, slots=slots)
    lowering.add(step, made, flat=flat)


def _image(
    lowering: _Lowering, value: _Value, weights: Weights, window: Window, size: Pair
) -> tuple[_Value, Weights, Window]:
    """The network's input, and the weights and window of a convolution that reads the pixels of
    each of its windows as the channels of one; of large windows, those of each row."""
    outputs, channels, kernel_h, kernel_w = weights.values.shape
    if channels > IMAGE_ROW:
        raise NotLowered(f"its input has {channels} channels, and the kernel reads {IMAGE_ROW}")
    reach_h, reach_w = (
        (taps - 1) * apart + 1
        for taps, apart in zip((kernel_h, kernel_w), window.dilation, strict=True)
    )
    if window.stride == (2, 2) and window.dilation == (1, 1) and max(reach_h, reach_w) <= 8:
        return _folded_image(lowering, value, weights, window, size)
    line_pixels = _power_of_two(reach_w * IMAGE_ROW, LEAST_CHANNELS) // IMAGE_ROW
    lines = _power_of_two(reach_h, 1)
    if line_pixels * IMAGE_ROW > MOST_UNFOLDED:
        raise NotLowered(f"its first kernel is {reach_w} pixels wide")
    whole = lines * line_pixels * IMAGE_ROW <= MOST_WINDOW
    top, left = (window.pad[0] if whole else 0), window.pad[1]
    lines = lines if whole else 1
    name = f"{value.name}/image {top} {left} {lines}x{line_pixels} {_pair(size)} {window.stride}"
    if name not in lowering.values:
        made = _Value(
            name=name,
            height=max(top + value.height, (size[0] - 1) * window.stride[0] + lines)
            if whole
            else value.height,
            width=max(left + value.width, (size[1] - 1) * window.stride[1] + line_pixels),
            channels=channels,
            slots=tuple(
                pixel * channels + channel if channel < channels else NOWHERE
                for pixel in range(lines * line_pixels)
                for channel in range(IMAGE_ROW)
            ),
            row=IMAGE_ROW,
            line_pixels=line_pixels,
        )
        lowering.add(ImageStep(x=value.name, y=name, top=top, left=left), made)
    if value.name in lowering.scales:
        lowering.scales[name] = lowering.scales[value.name]
    stride = window.stride
    if whole:  # (outputs, channels, rows, taps) → (outputs, lines · line_pixels · channels, 1, 1)
        values = np.zeros((outputs, lines, line_pixels, channels), weights.values.dtype)
        values[:, : reach_h : window.dilation[0], : reach_w : window.dilation[1]] = (
            weights.values.transpose(0, 2, 3, 1)
        )
        folded, taps = Window(stride=stride), 1
        values = values.reshape(outputs, -1, 1, 1)
    else:  # (outputs, line_pixels · channels, rows, 1)
        values = np.zeros((outputs, line_pixels, channels, kernel_h), weights.values.dtype)
        values[:, : reach_w : window.dilation[1]] = weights.values.transpose(0, 3, 1, 2)
        taps = kernel_h
        folded = Window(
            kernel=(kernel_h, 1),
            stride=stride,
            pad=(window.pad[0], 0),
            dilation=(window.dilation[0], 1),
        )
    values = values.reshape(outputs, -1, taps, 1)
    return lowering.values[name], replace(weights, values=values), folded


def _folded_image(
    lowering: _Lowering, value: _Value, weights: Weights, window: Window, size: Pair
) -> tuple[_Value, Weights, Window]:
    """The same for a stride of 2: blocks of 2 × 2 pixels are one with four times the channels."""
    outputs, channels, kernel_h, kernel_w = weights.values.shape
    row = 4 * IMAGE_ROW
    lines = _power_of_two(-(-kernel_h // 2), 1)
    line_pixels = _power_of_two(-(-kernel_w // 2), LEAST_CHANNELS // row)
    name = f"{value.name}/folded {window.pad} {lines}x{line_pixels} {_pair(size)}"
    if name not in lowering.values:
        made = _Value(
            name=name,
            height=max(-(-(window.pad[0] + value.height) // 2), size[0] - 1 + lines),
            width=max(-(-(window.pad[1] + value.width) // 2), size[1] - 1 + line_pixels),
            channels=channels,
            slots=tuple(
                pixel * channels + channel if channel < channels else NOWHERE
                for pixel in range(4 * line_pixels)
                for channel in range(IMAGE_ROW)
            ),
            row=row,
            line_pixels=line_pixels,
        )
        step = ImageStep(x=value.name, y=name, top=window.pad[0], left=window.pad[1], fold=2)
        lowering.add(step, made)
    if value.name in lowering.scales:
        lowering.scales[name] = lowering.scales[value.name]
    values = np.zeros((outputs, 2 * lines, 2 * line_pixels, channels), weights.values.dtype)
    values[:, :kernel_h, :kernel_w] = weights.values.transpose(0, 2, 3, 1)
    # (outputs, line, row, pixel, column, channel) → (outputs, pixel · row · column · channel, line)
    values = values.reshape(outputs, lines, 2, line_pixels, 2, channels)
    values = values.transpose(0, 3, 2, 4, 5, 1).reshape(outputs, -1, lines, 1)
    return lowering.values[name], replace(weights, values=values), Window(kernel=(lines, 1))


def _relu(lowering: _Lowering, operator: Operator) -> None:
    value = lowering.computed(operator)
    step = lowering.sole_step(operator.inputs[0])
    if step is None or isinstance(step, ImageStep) or step.relu:
        flat = lowering.is_flat(operator.inputs[0])
        lowering.copy(value, operator.name, relu=True, flat=flat)
        return
    lowering.join(step, replace(step, y=operator.name, relu=True))


def _add(lowering: _Lowering, operator: Operator) -> None:
    one, other = lowering.summands(operator)
    step = lowering.sole_step(one.name)
    if one is not other and isinstance(step, ConvStep) and not step.relu and not step.residual:
        if _joined(lowering, operator, step, lowering.sole_step(other.name)):
            return
        slots = _padded(one.channels)
        if one.slots == other.slots == slots:
            lowering.join(step, replace(step, y=operator.name, residual=other.name))
            return
    if one.slots != other.slots:
        raise NotLowered(f"it has no kernel for the sum {operator.name} of concatenations")
    made = replace(one, name=operator.name, parent="", offset=0)
    flat = lowering.is_flat(operator.inputs[0])
    lowering.add(AddStep(x=one.name, other=other.name, y=operator.name), made, flat=flat)


def _joined(
    lowering: _Lowering, operator: Operator, step: ConvStep, other: DeviceStep | None
) -> bool:
    """Compute the sum of two convolutions in the later one, `step`, if one is a projection."""
    if not isinstance(other, ConvStep) or other.relu or other.residual or other.projection:
        return False
    main, part = (step, other) if _is_projection(lowering, other) else (other, step)
    if step.projection or not _is_projection(lowering, part):
        return False
    if (
        main.window.stride != (1, 1)
        and part.window.stride == (1, 1)
        and (_is_projection(lowering, main))
    ):
        main, part = part, main  # what is read whole comes first
    if main.weights.dtype != part.weights.dtype:
        return False
    projection = ProjectionPart(
        x=part.x, stride=part.window.stride, weights=part.weights, scales=part.scales
    )
    number = lowering.step_of[other.y]
    made = replace(main, y=operator.name, biases=main.biases + part.biases, projection=projection)
    lowering.join(step, made)
    del lowering.steps[number], lowering.values[other.y], lowering.step_of[other.y]
    lowering.step_of = {y: at - (at > number) for y, at in lowering.step_of.items()}
    return True


def _is_projection(lowering: _Lowering, step: ConvStep) -> bool:
    """Whether a convolution has one tap and reads whole rows."""
    return (
        (step.window.kernel, step.window.pad) == ((1, 1), (0, 0))
        and not lowering.values[step.x].line_pixels
        and not lowering.values[step.y].parent
    )


def _concat(lowering: _Lowering, operator: Operator) -> None:
    parts, (height, width) = lowering.parts(operator)
    name, scale = operator.name, lowering.scales.get(operator.name)
    offset = logical = 0
    slots: list[int] = []
    seen = set()
    for part in parts:
        in_place = (
            not part.parent
            and part.name not in seen
            and lowering.scales.get(part.name) == scale
            and lowering.dtype(part.name) == lowering.dtype(name)
            and not _holds_parts(lowering, part.name)
        )
        seen.add(part.name)
        if not in_place:
            copy = f"{name}/part {offset}"
            if scale is not None:
                lowering.scales[copy] = scale
            part = lowering.copy(part, copy)
        part.parent, part.offset = name, offset
        slots += [s if s == NOWHERE else s + logical for s in part.slots]
        offset += len(part.slots)
        logical += part.channels
    made = _Value(name=name, height=height, width=width, channels=logical, slots=tuple(slots))
    lowering.enter(made)
    lowering.step_of[name] = len(lowering.steps) - 1


def _holds_parts(lowering: _Lowering, name: str) -> bool:
    """Whether a value is itself a concatenation."""
    return any(value.parent == name for value in lowering.values.values())


_KERNELS: dict[str, Callable[[_Lowering, Operator], None]] = {
    "Add": _add,
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "Relu": _relu,
}


def lower(graph: Graph) -> DeviceProgram:
    """The program of a graph whose batch is free; NotLowered, naming it, for what has no kernel."""
    return _Lowering(source=without_quantizations(graph)).lower()


# Shapes and memory


def _padded(channels: int) -> tuple[int, ...]:
    """Positions of the channels of a result: a multiple of what the kernels compute."""
    more = -channels % LEAST_CHANNELS
    return (*range(channels), *(NOWHERE,) * more)


def _power_of_two(length: int, least: int) -> int:
    """The least power of two that is at least `length` and `least`."""
    found = least
    while found < length:
        found *= 2
    return found


def _pair(values: tuple[int, int]) -> str:
    return "x".join(map(str, values))


def _program(
    lowering: _Lowering,
    given: str,
    shape: tuple[int, int, int],
    outputs: tuple[tuple[str, bool], ...],
) -> DeviceProgram:
    """Assign buffers: one is reused when nothing reads its array any more."""
    steps = lowering.steps
    owner = {name: lowering.owner(name)[0] for name in lowering.values if name != given}
    last: dict[str, int] = {}
    for place, step in enumerate(steps):
        for name in (*step.reads, step.y):
            last[owner[name]] = place
    for name, _ in outputs:
        last[owner[name]] = len(steps)
    sizes: list[int] = []
    free: list[int] = []
    buffer_of: dict[str, int] = {}
    for place, step in enumerate(steps):
        own = owner[step.y]
        if own not in buffer_of:
            buffer_of[own] = _take(free, sizes, _bytes(lowering, own))
        for name in {*step.reads, step.y}:
            if last[owner[name]] == place:
                free.append(buffer_of[owner[name]])
                last[owner[name]] = -1
    arrays = {}
    for name, own in owner.items():
        value, whole = lowering.values[name], lowering.values[own]
        if own in buffer_of:
            arrays[name] = DeviceArray(
                name=name,
                height=value.height,
                width=value.width,
                slots=value.slots,
                dtype=lowering.dtype(name),
                buffer=buffer_of[own],
                offset=lowering.owner(name)[1],
                row=whole.row or len(whole.slots),
                line_pixels=value.line_pixels,
                quantized=lowering.scales.get(name),
            )
    return DeviceProgram(
        network=lowering.source.graph.name,
        input=given,
        input_shape=shape,
        steps=tuple(steps),
        arrays=arrays,
        buffers=tuple(sizes),
        outputs=outputs,
    )


def _bytes(lowering: _Lowering, name: str) -> int:
    value = lowering.values[name]
    return (
        value.height * value.width * (value.row or len(value.slots)) * BYTES[lowering.dtype(name)]
    )


def _take(free: list[int], sizes: list[int], size: int) -> int:
    """The smallest free buffer of at least `size` bytes, or a new one."""
    fitting = [place for place in free if sizes[place] >= size]
    if fitting:
        chosen = min(fitting, key=lambda place: sizes[place])
        free.remove(chosen)
        return chosen
    sizes.append(size)
    return len(sizes) - 1
