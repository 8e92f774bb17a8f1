"""Lowering to kernels, the part that all devices share: from a graph of operators to the steps of a
program.

Views cost nothing, an operator that one kernel computes with the step before it is joined with that
step, and pools are the same on every device. `cpu/lower.py` and `gpu/lower.py` add products and the
memory of their device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from cubemesh.inference.passes.rewrite import integer, integers, number, text
from cubemesh.inference.quantization.quantized_graph import (
    NotLowered,
    Quantized,
    QuantizedGraph,
    Weights,
)
from cubemesh.kernels.window import Pair, Window
from cubemesh.onnx.graph import Operator

MOST_PIXELS = 1 << 20
"""Of a stride, of a dilation, or of the padding of a side."""


@dataclass(frozen=True, kw_only=True)
class PoolStep:
    """The maximum or mean of each window; of one pixel: a copy, in another scale."""

    x: str
    y: str
    window: Window
    average: bool = False
    divisor: int = 0
    """Of a mean; 0: the number of pixels inside the image."""
    relu: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The array that it needs."""
        return (self.x,)


@dataclass(frozen=True, kw_only=True)
class AddStep:
    """The sum of two arrays."""

    x: str
    other: str
    y: str
    relu: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that it needs."""
        return (self.x, self.other)


@dataclass(kw_only=True, eq=False)
class Value:
    """A value of the network while its program is made."""

    name: str
    height: int
    width: int
    channels: int
    parent: str = ""
    """The concatenation of which it is a slice."""
    offset: int = 0


class _Step(Protocol):
    @property
    def y(self) -> str: ...


V = TypeVar("V", bound=Value)
S = TypeVar("S", bound=_Step)
"""Steps of a device, besides pools and sums."""


@dataclass(kw_only=True)
class Lowering(Generic[V, S]):
    """The steps of a program while it is made."""

    source: QuantizedGraph
    scales: dict[str, Quantized] = field(init=False)
    """Of values that are stored in 8 bits."""
    values: dict[str, V] = field(default_factory=dict)
    steps: list[S | PoolStep | AddStep] = field(default_factory=list)
    step_of: dict[str, int] = field(default_factory=dict)
    """Value → the step that computes it, or the last part of it."""
    alias: dict[str, str] = field(default_factory=dict)
    """View → the value that it shows."""
    users: Counter[str] = field(default_factory=Counter)
    flattened: set[str] = field(default_factory=set)
    """Names whose pixels and channels are one axis."""

    def __post_init__(self) -> None:
        self.scales = dict(self.source.quantized)
        graph = self.source.graph
        for operator in graph.operators:
            self.users.update({name for name in operator.inputs if name})
        self.users.update(graph.output_names)

    def image(self) -> tuple[str, tuple[int, int, int]]:
        """Name of the network's input, and its channels, height and width. NotLowered unless it is
        a batch of images of one size."""
        inputs = self.source.graph.inputs
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            raise NotLowered("its input is not one batch of images")
        _, channels, height, width = inputs[0].shape
        if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
            raise NotLowered("its input has free lengths")
        if min(channels, height, width) < 1:
            raise NotLowered("its input is empty")
        return inputs[0].name, (channels, height, width)

    def results(self) -> tuple[tuple[str, bool], ...]:
        """The values that are results of the network, and whether each is flat."""
        found = []
        for output in self.source.graph.outputs:
            value = self.value(output.name)
            if value.name not in self.step_of:
                raise NotLowered(f"its result {output.name} is not computed by a kernel")
            found.append((value.name, self.is_flat(output.name)))
        return tuple(found)

    def value(self, name: str) -> V:
        """The value behind a name; NotLowered for a constant."""
        name = self.base(name)
        if name not in self.values:
            raise NotLowered(f"{name} is a constant where a kernel reads an activation")
        return self.values[name]

    def computed(self, operator: Operator, position: int = 0) -> V:
        """An input of an operator that a step computes."""
        value = self.value(operator.inputs[position])
        if value.name not in self.step_of:
            raise NotLowered(f"{operator.name} reads the network's input")
        return value

    def base(self, name: str) -> str:
        """The value that a view shows."""
        while name in self.alias:
            name = self.alias[name]
        return name

    def is_flat(self, name: str) -> bool:
        """Whether pixels and channels are one axis of `name`."""
        while name not in self.flattened and name in self.alias:
            name = self.alias[name]
        return name in self.flattened

    def owner(self, name: str) -> tuple[str, int]:
        """The array of which `name` is a slice, and the offset of its channels there."""
        offset = 0
        while self.values[name].parent:
            offset += self.values[name].offset
            name = self.values[name].parent
        return name, offset

    def weights(self, name: str) -> Weights:
        """A constant."""
        found = self.source.weights.get(name)
        if found is None:
            raise NotLowered(f"the weights {name} are not constant")
        return found

    def enter(self, value: V) -> None:
        """Enter a value; NotLowered where another one has its name."""
        if value.name in self.values:
            raise NotLowered(f"two values are called {value.name}")
        self.values[value.name] = value

    def add(self, step: S | PoolStep | AddStep, value: V, *, flat: bool = False) -> None:
        """Append a step and its result."""
        self.enter(value)
        self.step_of[value.name] = len(self.steps)
        self.steps.append(step)
        if flat:
            self.flattened.add(value.name)

    def sole_step(self, name: str) -> S | PoolStep | AddStep | None:
        """The step whose result is `name`, if only one operator uses it and it is not a view."""
        step = self.steps[self.step_of[name]] if name in self.step_of else None
        return step if step is not None and step.y == name and self.users[name] == 1 else None

    def join(self, step: S | PoolStep | AddStep, joined: S | PoolStep | AddStep) -> None:
        """Replace a step by one that computes what follows it too."""
        at = self.step_of.pop(step.y)
        value = self.values.pop(step.y)
        value.name = joined.y
        self.enter(value)
        self.step_of[joined.y] = at
        if step.y in self.flattened:
            self.flattened.add(joined.y)
        self.steps[at] = joined

    def copy(self, value: V, name: str, *, relu: bool = False, flat: bool = False) -> V:
        """Add a copy of a value; the copy."""
        made = replace(value, name=name, parent="", offset=0)
        self.add(PoolStep(x=value.name, y=name, window=Window(), relu=relu), made, flat=flat)
        return made

    def convolution(self, operator: Operator) -> tuple[V, Weights, Window, Pair]:
        """Input, weights and windows of a convolution, and the size of its result."""
        weights = self.weights(operator.inputs[1])
        if integer(operator, "group", 1) != 1:
            raise NotLowered(f"it has no kernel for convolutions in groups ({operator.name})")
        if weights.values.ndim != 4:
            raise NotLowered(f"it has no kernel for convolutions of {weights.values.ndim - 2} axes")
        value = self.value(operator.inputs[0])
        kernel = (weights.values.shape[2], weights.values.shape[3])
        return value, weights, *window_of(operator, kernel, value)

    def matrix_product(self, operator: Operator) -> tuple[V, Weights, Window, Pair]:
        """Those of a product of a matrix: a convolution over the whole image."""
        weights = self.weights(operator.inputs[1])
        attributes = (number(operator, "alpha", 1.0), number(operator, "beta", 1.0))
        value = self.value(operator.inputs[0])
        whole = weights.values.ndim == 2 and self.is_flat(operator.inputs[0])
        if attributes != (1.0, 1.0) or integer(operator, "transA", 0) or not whole:
            raise NotLowered(f"it has no kernel for this product ({operator.name})")
        if not integer(operator, "transB", 0):
            weights = replace(weights, values=weights.values.T, axis=1 - weights.axis)
        shape = (len(weights.values), value.channels, value.height, value.width)
        if weights.values.shape[1] != value.channels * value.height * value.width:
            raise NotLowered(f"the shapes of {operator.name} contradict")
        weights = replace(weights, values=weights.values.reshape(shape))
        return value, weights, Window(kernel=(value.height, value.width)), (1, 1)

    def summands(self, operator: Operator) -> tuple[V, V]:
        """The inputs of a sum, the one that is computed last before the other."""
        one, other = (self.computed(operator, position) for position in (0, 1))
        if (one.height, one.width, one.channels) != (other.height, other.width, other.channels):
            raise NotLowered(f"it has no kernel for sums of different shapes ({operator.name})")
        later = self.step_of[one.name] >= self.step_of[other.name]
        return (one, other) if later else (other, one)

    def parts(self, operator: Operator) -> tuple[list[V], Pair]:
        """The inputs of a concatenation of channels, and their height and width."""
        parts = [self.computed(operator, position) for position in range(len(operator.inputs))]
        sizes = {(part.height, part.width) for part in parts}
        flat = any(self.is_flat(name) for name in operator.inputs)
        if integer(operator, "axis", 1) not in (1, -3) or len(sizes) != 1 or flat:
            raise NotLowered(f"it has no kernel for this concatenation ({operator.name})")
        return parts, sizes.pop()


L = TypeVar("L", bound=Lowering[Any, Any])


def kernel_of(
    kernels: Mapping[str, Callable[[L, Operator], None]], operator: Operator
) -> Callable[[L, Operator], None]:
    """The function that lowers an operator, of those of a device or of all devices."""
    found = kernels.get(operator.kind) or _SHARED.get(operator.kind)
    if found is None:
        raise NotLowered(f"it has no kernel for {operator.kind} ({operator.name})")
    return found


def window_of(operator: Operator, kernel: Pair, value: Value) -> tuple[Window, Pair]:
    """The windows of an operator, and height and width of its result."""
    strides = integers(operator, "strides", (1, 1))
    dilations = integers(operator, "dilations", (1, 1))
    pads = integers(operator, "pads", (0, 0, 0, 0))
    lists = len(strides) == len(dilations) == 2 and len(pads) == 4
    steps = (*strides, *dilations)
    if not lists or min(*kernel, *steps) < 1 or min(pads) < 0 or max(*steps, *pads) > MOST_PIXELS:
        raise NotLowered(f"it has no kernel for the window of {operator.name}")
    if text(operator, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotLowered(f"it has no kernel for automatic padding ({operator.name})")
    lengths = []
    for n, size in enumerate((value.height, value.width)):
        rest = size + pads[n] + pads[n + 2] - dilations[n] * (kernel[n] - 1) - 1
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
    return window, (lengths[0], lengths[1])


# Operators that every device computes by the same steps


def _max_pool(lowering: Lowering[Any, Any], operator: Operator) -> None:
    if len(operator.outputs) > 1 and operator.outputs[1]:
        raise NotLowered(f"it has no kernel for the indices of maxima ({operator.name})")
    _pool(lowering, operator, average=False)


def _average_pool(lowering: Lowering[Any, Any], operator: Operator) -> None:
    _pool(lowering, operator, average=True)


def _global_average_pool(lowering: Lowering[Any, Any], operator: Operator) -> None:
    value = lowering.computed(operator)
    window = Window(kernel=(value.height, value.width))
    step = PoolStep(x=value.name, y=operator.name, window=window, average=True)
    made = replace(value, name=operator.name, height=1, width=1, parent="", offset=0)
    lowering.add(step, made)


def _pool(lowering: Lowering[Any, Any], operator: Operator, *, average: bool) -> None:
    value = lowering.computed(operator)
    kernel = integers(operator, "kernel_shape")
    if len(kernel) != 2:
        raise NotLowered(f"it has no kernel for pools of {len(kernel)} axes ({operator.name})")
    window, size = window_of(operator, (kernel[0], kernel[1]), value)
    if window.dilation != (1, 1):
        raise NotLowered(f"it has no kernel for dilated pools ({operator.name})")
    divisor = 0
    if average and integer(operator, "count_include_pad", 0):
        divisor = kernel[0] * kernel[1]
        pads = integers(operator, "pads", (0, 0, 0, 0))
        for n, given in enumerate((value.height, value.width)):
            last = (size[n] - 1) * window.stride[n] - window.pad[n] + kernel[n]
            if last > given + pads[n + 2]:
                raise NotLowered(f"it has no kernel for means beyond the padding ({operator.name})")
    step = PoolStep(x=value.name, y=operator.name, window=window, average=average, divisor=divisor)
    made = replace(value, name=operator.name, height=size[0], width=size[1], parent="", offset=0)
    lowering.add(step, made)


def _view(lowering: Lowering[Any, Any], operator: Operator) -> None:
    value = lowering.value(operator.inputs[0])
    flat = lowering.is_flat(operator.inputs[0])
    refusal = NotLowered(f"it has no kernel for this view ({operator.name})")
    if operator.kind == "Flatten":
        if integer(operator, "axis", 1) != 1:
            raise refusal
        flat = True
    elif operator.kind == "Reshape":
        shape = lowering.source.graph.constant(operator.inputs[1])
        if shape is None or shape.size != 2 or int(shape[0]) == 1:
            raise refusal
        flat = True
    elif operator.kind == "Squeeze":
        if (value.height, value.width) != (1, 1):
            raise refusal
        flat = True
    lowering.alias[operator.name] = value.name
    if flat:
        lowering.flattened.add(operator.name)
    lowering.users[value.name] += lowering.users[operator.name] - 1
    own = lowering.scales.get(operator.name)
    if own is not None and lowering.scales.setdefault(value.name, own) != own:
        raise NotLowered(f"{operator.name} has another scale than {value.name}")


_SHARED: dict[str, Callable[[Any, Operator], None]] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "MaxPool": _max_pool,
    **dict.fromkeys(("Dropout", "Flatten", "Identity", "Reshape", "Squeeze"), _view),
}
