"""Lowering: from a graph of operators to a program of kernels in the layout HWNC.

A convolution takes the residual sum and the ReLU that follow it; the parts of a concatenation are
written where they belong; views cost nothing. Networks of convolutions, matrix products, pools,
sums and concatenations are lowered; anything else is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cubemesh.inference.gpu.program import (
    IMAGE_ROW,
    NOWHERE,
    AddStep,
    ConvStep,
    DeviceArray,
    DeviceProgram,
    DeviceStep,
    ImageStep,
    PoolStep,
    ProjectionPart,
)
from cubemesh.inference.passes.rewrite import integer, integers, number, text
from cubemesh.inference.quantization.quantized_graph import (
    NotLowered,
    Quantized,
    QuantizedGraph,
    Weights,
)
from cubemesh.inference.quantization.quantized_graph import without_quantizations as plain
from cubemesh.kernels.triton.hwnc.launch import LEAST_CHANNELS, Window
from cubemesh.onnx.graph import Graph, Operator

BYTES = {"int8": 1, "float16": 2, "float32": 4}
MOST_WINDOW = 256
"""Most channels of a window that the first convolution reads at once."""
MOST_UNFOLDED = 64
"""Most channels that a row of taps of the first convolution reads."""
_VIEWS = ("Dropout", "Flatten", "Identity", "Reshape", "Squeeze")


@dataclass(kw_only=True, eq=False)
class _Value:
    """A value of the network while its program is made."""

    name: str
    height: int
    width: int
    channels: int
    flat: bool = False
    """Whether pixels and channels are one axis, as (channel, row, column)."""
    slots: tuple[int, ...] = ()
    parent: str = ""
    """The concatenation of which it is a slice."""
    offset: int = 0
    row: int = 0
    """Channels of its rows, where these are not all of `slots`."""
    line_pixels: int = 0
    """Pixels of each row of a window, where the channels are those of a window."""


@dataclass(kw_only=True)
class _Lowering:
    source: QuantizedGraph
    values: dict[str, _Value] = field(default_factory=dict)
    steps: list[DeviceStep] = field(default_factory=list)
    step_of: dict[str, int] = field(default_factory=dict)
    """Value → the step that computes it."""
    alias: dict[str, str] = field(default_factory=dict)
    """View → the value that it shows."""
    users: Counter[str] = field(default_factory=Counter)
    flattened: set[str] = field(default_factory=set)
    """Names whose pixels and channels are one axis."""

    def lower(self) -> DeviceProgram:
        graph = self.source.graph
        if len(graph.inputs) != 1 or len(graph.inputs[0].shape) != 4:
            raise NotLowered("its input is not one batch of images")
        _, channels, height, width = graph.inputs[0].shape
        if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
            raise NotLowered("its input has free lengths")
        given = graph.inputs[0].name
        self.values[given] = _Value(name=given, height=height, width=width, channels=channels)
        for operator in graph.operators:
            self.users.update({name for name in operator.inputs if name})
        self.users.update(graph.output_names)
        for operator in graph.operators:
            lower = _LOWER.get(operator.kind)
            if lower is None:
                raise NotLowered(f"it has no kernel for {operator.kind} ({operator.name})")
            lower(self, operator)
        outputs = []
        for output in graph.outputs:
            value = self.value(output.name)
            if value.name not in self.step_of:
                raise NotLowered(f"its result {output.name} is not computed by a kernel")
            outputs.append((value.name, self.is_flat(output.name)))
        return _program(self, given, (channels, height, width), tuple(outputs))

    def value(self, name: str) -> _Value:
        """The value behind a name; NotLowered for a constant."""
        name = self.base(name)
        if name not in self.values:
            raise NotLowered(f"{name} is a constant where a kernel reads an activation")
        return self.values[name]

    def base(self, name: str) -> str:
        """The value that a view shows."""
        while name in self.alias:
            name = self.alias[name]
        return name

    def is_flat(self, name: str) -> bool:
        """Whether pixels and channels are one axis of `name`."""
        while True:
            if name in self.values and self.values[name].flat:
                return True
            if name not in self.alias:
                return False
            if name in self.flattened:
                return True
            name = self.alias[name]

    def dtype(self, name: str) -> str:
        """How a value is stored."""
        if name in self.source.quantized:
            return "int8"
        shown = {name, *(view for view in self.alias if self.base(view) == name)}
        if shown & self.source.graph.output_names:
            return "float32"
        return "float16"

    def add(self, step: DeviceStep, value: _Value) -> None:
        """Append a step and its result."""
        self.values[value.name] = value
        self.step_of[value.name] = len(self.steps)
        self.steps.append(step)

    def sole_step(self, name: str) -> DeviceStep | None:
        """The step whose result is `name`, if only one operator uses it and it is not a view."""
        step = self.steps[self.step_of[name]] if name in self.step_of else None
        return step if step is not None and step.y == name and self.users[name] == 1 else None

    def rename(self, step: DeviceStep, name: str) -> None:
        """Give the result of a step, after what was joined with it, another name."""
        number = self.step_of.pop(step.y)
        value = self.values.pop(step.y)
        value.name = name
        self.values[name] = value
        self.step_of[name] = number

    def weights(self, name: str) -> Weights:
        """A constant."""
        found = self.source.weights.get(name)
        if found is None:
            raise NotLowered(f"the weights {name} are not constant")
        return found


# Operators


def _conv(lowering: _Lowering, operator: Operator) -> None:
    weights = lowering.weights(operator.inputs[1])
    if integer(operator, "group", 1) != 1:
        raise NotLowered(f"it has no kernel for convolutions in groups ({operator.name})")
    if weights.values.ndim != 4:
        raise NotLowered(f"it has no kernel for convolutions of {weights.values.ndim - 2} axes")
    kernel = (weights.values.shape[2], weights.values.shape[3])
    value = lowering.value(operator.inputs[0])
    window, height, width = _window(operator, kernel, value)
    _product(lowering, operator, value, weights, window, (height, width))


def _gemm(lowering: _Lowering, operator: Operator) -> None:
    weights = lowering.weights(operator.inputs[1])
    attributes = (number(operator, "alpha", 1.0), number(operator, "beta", 1.0))
    if attributes != (1.0, 1.0) or integer(operator, "transA", 0) or weights.values.ndim != 2:
        raise NotLowered(f"it has no kernel for this product ({operator.name})")
    if not integer(operator, "transB", 0):
        weights = replace(weights, values=weights.values.T, axis=1 - weights.axis)
    value = lowering.value(operator.inputs[0])
    if not lowering.is_flat(operator.inputs[0]) or weights.axis != 0:
        raise NotLowered(f"it has no kernel for this product ({operator.name})")
    shape = (len(weights.values), value.channels, value.height, value.width)
    if weights.values.shape[1] != value.channels * value.height * value.width:
        raise NotLowered(f"the shapes of {operator.name} contradict")
    weights = replace(weights, values=weights.values.reshape(shape))
    window = Window(kernel=(value.height, value.width))
    _product(lowering, operator, value, weights, window, (1, 1))
    lowering.flattened.add(operator.name)
    lowering.values[operator.name].flat = True


def _product(
    lowering: _Lowering,
    operator: Operator,
    value: _Value,
    weights: Weights,
    window: Window,
    size: tuple[int, int],
) -> None:
    """Add a convolution; one that reads the network's input reads rows of its pixels."""
    name, outputs = operator.name, weights.values.shape[0]
    if value.name not in lowering.step_of:
        value, weights, window = _image(lowering, value, weights, window, size)
    slots = _padded(outputs)
    bias = np.zeros(outputs, np.float32)
    if len(operator.inputs) > 2 and operator.inputs[2]:
        bias = np.broadcast_to(lowering.weights(operator.inputs[2]).real.reshape(-1), bias.shape)
    quantized = lowering.source.quantized.get(value.name)
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
    lowering.add(step, made)


def _image(
    lowering: _Lowering, value: _Value, weights: Weights, window: Window, size: tuple[int, int]
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
    if value.name in lowering.source.quantized:
        quantized = {**lowering.source.quantized, name: lowering.source.quantized[value.name]}
        lowering.source = replace(lowering.source, quantized=quantized)
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
    lowering: _Lowering, value: _Value, weights: Weights, window: Window, size: tuple[int, int]
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
    if value.name in lowering.source.quantized:
        quantized = {**lowering.source.quantized, name: lowering.source.quantized[value.name]}
        lowering.source = replace(lowering.source, quantized=quantized)
    values = np.zeros((outputs, 2 * lines, 2 * line_pixels, channels), weights.values.dtype)
    values[:, :kernel_h, :kernel_w] = weights.values.transpose(0, 2, 3, 1)
    # (outputs, line, row, pixel, column, channel) → (outputs, pixel · row · column · channel, line)
    values = values.reshape(outputs, lines, 2, line_pixels, 2, channels)
    values = values.transpose(0, 3, 2, 4, 5, 1).reshape(outputs, -1, lines, 1)
    return lowering.values[name], replace(weights, values=values), Window(kernel=(lines, 1))


def _relu(lowering: _Lowering, operator: Operator) -> None:
    name = lowering.base(operator.inputs[0])
    step = lowering.sole_step(operator.inputs[0])
    if step is None or isinstance(step, ImageStep) or step.relu:
        if name not in lowering.step_of:
            raise NotLowered(f"{operator.name} reads the network's input")
        flat = lowering.is_flat(operator.inputs[0])
        _copy(lowering, lowering.value(name), operator.name, relu=True)
        lowering.values[operator.name].flat = flat
        return
    lowering.rename(step, operator.name)
    number = lowering.step_of[operator.name]
    lowering.steps[number] = replace(step, y=operator.name, relu=True)
    if step.y in lowering.flattened:
        lowering.flattened.add(operator.name)


def _add(lowering: _Lowering, operator: Operator) -> None:
    one, other = (lowering.value(name) for name in operator.inputs)
    if (one.height, one.width, one.channels) != (other.height, other.width, other.channels):
        raise NotLowered(f"it has no kernel for sums of different shapes ({operator.name})")
    if one.name not in lowering.step_of or other.name not in lowering.step_of:
        raise NotLowered(f"{operator.name} adds the network's input")
    if lowering.step_of[one.name] < lowering.step_of[other.name]:
        one, other = other, one
    step = lowering.sole_step(one.name)
    if one is not other and isinstance(step, ConvStep) and not step.relu and not step.residual:
        if _joined(lowering, operator, step, lowering.sole_step(other.name)):
            return
        slots = _padded(one.channels)
        if one.slots == other.slots == slots:
            lowering.rename(step, operator.name)
            number = lowering.step_of[operator.name]
            lowering.steps[number] = replace(step, y=operator.name, residual=other.name)
            return
    if one.slots != other.slots:
        raise NotLowered(f"it has no kernel for the sum {operator.name} of concatenations")
    made = replace(one, name=operator.name, parent="", offset=0)
    lowering.add(AddStep(x=one.name, other=other.name, y=operator.name), made)


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
    lowering.rename(step, operator.name)
    lowering.steps[lowering.step_of[operator.name]] = made
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


def _max_pool(lowering: _Lowering, operator: Operator) -> None:
    if len(operator.outputs) > 1 and operator.outputs[1]:
        raise NotLowered(f"it has no kernel for the indices of maxima ({operator.name})")
    _pool(lowering, operator, average=False)


def _average_pool(lowering: _Lowering, operator: Operator) -> None:
    _pool(lowering, operator, average=True)


def _global_average_pool(lowering: _Lowering, operator: Operator) -> None:
    value = _computed(lowering, operator)
    window = Window(kernel=(value.height, value.width))
    step = PoolStep(x=value.name, y=operator.name, window=window, average=True)
    made = replace(value, name=operator.name, height=1, width=1, parent="", offset=0)
    lowering.add(step, made)


def _pool(lowering: _Lowering, operator: Operator, *, average: bool) -> None:
    value = _computed(lowering, operator)
    kernel = integers(operator, "kernel_shape")
    if len(kernel) != 2:
        raise NotLowered(f"it has no kernel for pools of {len(kernel)} axes ({operator.name})")
    window, height, width = _window(operator, (kernel[0], kernel[1]), value)
    if window.dilation != (1, 1):
        raise NotLowered(f"it has no kernel for dilated pools ({operator.name})")
    divisor = 0
    if average and integer(operator, "count_include_pad", 0):
        divisor = kernel[0] * kernel[1]
        last_h = (height - 1) * window.stride[0] - window.pad[0] + kernel[0]
        last_w = (width - 1) * window.stride[1] - window.pad[1] + kernel[1]
        pads = integers(operator, "pads", (0, 0, 0, 0))
        if last_h > value.height + pads[2] or last_w > value.width + pads[3]:
            raise NotLowered(f"it has no kernel for means beyond the padding ({operator.name})")
    step = PoolStep(x=value.name, y=operator.name, window=window, average=average, divisor=divisor)
    lowering.add(
        step, replace(value, name=operator.name, height=height, width=width, parent="", offset=0)
    )


def _computed(lowering: _Lowering, operator: Operator) -> _Value:
    value = lowering.value(operator.inputs[0])
    if value.name not in lowering.step_of:
        raise NotLowered(f"{operator.name} reads the network's input")
    return value


def _concat(lowering: _Lowering, operator: Operator) -> None:
    parts = [lowering.value(name) for name in operator.inputs]
    sizes = {(part.height, part.width) for part in parts}
    flat = any(lowering.is_flat(name) for name in operator.inputs)
    if integer(operator, "axis", 1) not in (1, -3) or len(sizes) > 1 or flat:
        raise NotLowered(f"it has no kernel for this concatenation ({operator.name})")
    name, scale = operator.name, lowering.source.quantized.get(operator.name)
    offset = logical = 0
    slots: list[int] = []
    seen = set()
    for part in parts:
        own = lowering.source.quantized.get(part.name)
        in_place = (
            part.name in lowering.step_of
            and not part.parent
            and part.name not in seen
            and own == scale
            and lowering.dtype(part.name) == lowering.dtype(name)
            and not _holds_parts(lowering, part.name)
        )
        seen.add(part.name)
        if not in_place:
            if part.name not in lowering.step_of:
                raise NotLowered(f"{name} concatenates the network's input")
            copy = f"{name}/part {offset}"
            if scale is not None:
                quantized = {**lowering.source.quantized, copy: scale}
                lowering.source = replace(lowering.source, quantized=quantized)
            _copy(lowering, part, copy)
            part = lowering.values[copy]
        part.parent, part.offset = name, offset
        slots += [s if s == NOWHERE else s + logical for s in part.slots]
        offset += len(part.slots)
        logical += part.channels
    height, width = sizes.pop()
    lowering.values[name] = _Value(
        name=name, height=height, width=width, channels=logical, slots=tuple(slots)
    )
    lowering.step_of[name] = len(lowering.steps) - 1


def _holds_parts(lowering: _Lowering, name: str) -> bool:
    """Whether a value is itself a concatenation."""
    return any(value.parent == name for value in lowering.values.values())


def _copy(lowering: _Lowering, value: _Value, name: str, *, relu: bool = False) -> None:
    step = PoolStep(x=value.name, y=name, window=Window(), relu=relu)
    lowering.add(step, replace(value, name=name, parent="", offset=0))


def _view(lowering: _Lowering, operator: Operator) -> None:
    value = lowering.value(operator.inputs[0])
    flat = lowering.is_flat(operator.inputs[0])
    if operator.kind == "Flatten" and integer(operator, "axis", 1) == 1:
        flat = True
    elif operator.kind == "Reshape":
        shape = lowering.source.graph.constant(operator.inputs[1])
        if shape is None or shape.size != 2 or int(shape[0]) == 1:
            raise NotLowered(f"it has no kernel for this view ({operator.name})")
        flat = True
    elif operator.kind == "Squeeze":
        if (value.height, value.width) != (1, 1):
            raise NotLowered(f"it has no kernel for this view ({operator.name})")
        flat = True
    elif operator.kind == "Flatten":
        raise NotLowered(f"it has no kernel for this view ({operator.name})")
    lowering.alias[operator.name] = operator.inputs[0]
    if flat:
        lowering.flattened.add(operator.name)
    extra = lowering.users[operator.name] - 1
    lowering.users[value.name] += extra
    if operator.name in lowering.source.quantized:
        own = lowering.source.quantized.get(value.name)
        if own is None:  # what is shown is stored as the view is
            quantized = {
                **lowering.source.quantized,
                value.name: lowering.source.quantized[operator.name],
            }
            lowering.source = replace(lowering.source, quantized=quantized)
        elif own != lowering.source.quantized[operator.name]:
            raise NotLowered(f"{operator.name} has another scale than {value.name}")


_LOWER: dict[str, Callable[[_Lowering, Operator], None]] = {
    "Add": _add,
    "AveragePool": _average_pool,
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "MaxPool": _max_pool,
    "Relu": _relu,
    **dict.fromkeys(_VIEWS, _view),
}


def lower(graph: Graph) -> DeviceProgram:
    """The program of a graph whose batch is free; NotLowered, naming it, for what has no kernel."""
    return _Lowering(source=plain(graph)).lower()


# Shapes and memory


def _window(operator: Operator, kernel: tuple[int, int], value: _Value) -> tuple[Window, int, int]:
    """The windows of an operator, and height and width of its result."""
    strides = integers(operator, "strides", (1, 1))
    dilations = integers(operator, "dilations", (1, 1))
    pads = integers(operator, "pads", (0, 0, 0, 0))
    if text(operator, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotLowered(f"it has no kernel for automatic padding ({operator.name})")
    lengths = []
    for n, size in enumerate((value.height, value.width)):
        reach = dilations[n] * (kernel[n] - 1) + 1
        rest = size + pads[n] + pads[n + 2] - reach
        length = rest // strides[n] + 1
        if integer(operator, "ceil_mode", 0) and rest % strides[n]:
            # the last window begins inside the image or its padding before
            length += length * strides[n] < size + pads[n]
        if length < 1:
            raise NotLowered(f"the windows of {operator.name} are larger than its input")
        lengths.append(length)
    window = Window(
        kernel=kernel,
        stride=(strides[0], strides[1]),
        pad=(pads[0], pads[1]),
        dilation=(dilations[0], dilations[1]),
    )
    return window, lengths[0], lengths[1]


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
    owner = {name: _owner(lowering, name) for name in lowering.values if name != given}
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
                offset=_offset(lowering, name),
                row=whole.row or len(whole.slots),
                line_pixels=value.line_pixels,
                quantized=_quantized(lowering, name),
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


def _owner(lowering: _Lowering, name: str) -> str:
    """The array of which `name` is a slice, or itself."""
    while lowering.values[name].parent:
        name = lowering.values[name].parent
    return name


def _offset(lowering: _Lowering, name: str) -> int:
    found = 0
    while lowering.values[name].parent:
        found += lowering.values[name].offset
        name = lowering.values[name].parent
    return found


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


def _quantized(lowering: _Lowering, name: str) -> Quantized | None:
    return lowering.source.quantized.get(name)
