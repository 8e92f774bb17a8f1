"""ONNX operators as modules of PyTorch, in the operators that tracing knows.

To add an operator: write a function that gives its module and the inputs that it takes, and add a
line to `OPERATORS`. What has no layer type is refused by an exception whose text says why; what is
written here need not check that, as tracing does.

Operators that are merged into another one's module are found before (onnx_building.py).
"""

from __future__ import annotations

import operator as operator_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.batches import Array
from cubemesh.frameworks.pytorch.own.onnx_building import Building, integer
from cubemesh.frameworks.pytorch.own.values import Untraceable
from cubemesh.onnx.graph import Operator


class Function(nn.Module):
    """A function of tensors, with constants that training does not adapt and weights that it
    does."""

    def __init__(self, call: Callable[..., Any], *arrays: Tensor | nn.Parameter) -> None:
        super().__init__()
        self._call, self._count = call, len(arrays)
        for number, array in enumerate(arrays):
            if isinstance(array, nn.Parameter):
                self.register_parameter(f"array{number}", array)
            else:
                self.register_buffer(f"array{number}", array)

    def forward(self, *values: Tensor) -> Any:
        """The result, of the inputs and then the arrays."""
        return self._call(*values, *(getattr(self, f"array{n}") for n in range(self._count)))


@dataclass(frozen=True)
class Step:
    """A module, and the values that it reads and writes."""

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Build = Callable[[Building, Operator], tuple[nn.Module, tuple[str, ...]]]


def build(building: Building, operator: Operator) -> Step | None:
    """The module of an operator, run on the samples; None for one of constants, which is computed.
    Raises where it has no module."""
    if building.is_constant(operator):
        if all(building.constant(name) is None for name in operator.outputs):
            raise Untraceable("it computes constants that do not fit, or are too large")
        return None
    if operator.kind not in OPERATORS:
        raise Untraceable("its layer type does not exist")
    module, inputs = OPERATORS[operator.kind](building, operator)
    module.eval()
    found = module(*(building.values[name] for name in inputs))
    results = found if isinstance(found, (list, tuple)) else (found,)
    outputs = operator.outputs
    if operator.name in building.biases:
        outputs = building.biases[operator.name].outputs
    building.values.update(zip(outputs, results, strict=False))
    return Step(module, inputs, outputs)


def _pairs(operator: Operator, name: str, default: int) -> tuple[int, int]:
    found = operator.attributes.get(name, (default, default))
    if not isinstance(found, tuple) or len(found) != 2:
        raise Untraceable("it is not of images")
    return int(found[0]), int(found[1])


def _number(operator: Operator, name: str, default: float) -> float:
    found = operator.attributes.get(name, default)
    return float(found) if isinstance(found, (int, float)) else default


def _padding(
    building: Building, operator: Operator, kernel: tuple[int, int], stride: tuple[int, int]
) -> tuple[int, int]:
    """Zeros on both sides of the height and the width."""
    how = operator.attributes.get("auto_pad", "NOTSET")
    if how == "VALID":
        return (0, 0)
    if how == "NOTSET":
        found = operator.attributes.get("pads", (0, 0, 0, 0))
        sides = [int(n) for n in found] if isinstance(found, tuple) else []
    else:
        sizes = building.shape(operator.inputs[0])[2:]
        dilation = _pairs(operator, "dilations", 1)
        totals = [
            max(0, (-(-size // step) - 1) * step + (cells - 1) * gap + 1 - size)
            for size, step, cells, gap in zip(sizes, stride, kernel, dilation, strict=True)
        ]
        sides = [n // 2 for n in totals] + [n - n // 2 for n in totals]
    if len(sides) != 4 or sides[:2] != sides[2:]:
        raise Untraceable("it pads its sides by different numbers of zeros")
    return sides[0], sides[1]


def _conv(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    weight, bias = b.array(operator, 1), b.optional(operator, 2)
    if weight.ndim != 4:
        raise Untraceable("it is not a convolution of images")
    groups, stride = integer(operator, "group", 1), _pairs(operator, "strides", 1)
    kernel = (weight.shape[2], weight.shape[3])
    module = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        kernel,
        stride,
        _padding(b, operator, kernel, stride),
        _pairs(operator, "dilations", 1),
        groups,
        bias is not None,
        device="meta",
    )
    return _with_weights(b, module, weight, bias), operator.inputs[:1]


def _with_weights(b: Building, module: Any, weight: Array, bias: Array | None) -> nn.Module:
    module.weight = b.parameter(weight)
    module.bias = None if bias is None else b.parameter(bias)
    made: nn.Module = module
    return made


def _product(b: Building, weight: Array, bias: Array | None) -> nn.Module:
    """A product with a weight (out, in)."""
    if weight.ndim != 2:
        raise Untraceable("its weight is not a matrix")
    module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return _with_weights(b, module, weight, bias)


def _gemm(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    if integer(operator, "transA", 0):
        raise Untraceable("it transposes its first factor")
    weight, bias = b.array(operator, 1), b.optional(operator, 2)
    weight = weight * np.float32(_number(operator, "alpha", 1.0))
    weight = weight if integer(operator, "transB", 0) else weight.T
    if bias is not None:
        bias = np.broadcast_to(bias, (1, len(weight))).reshape(-1)
        bias = bias * np.float32(_number(operator, "beta", 1.0))
    return _product(b, weight, bias), operator.inputs[:1]


def _matmul(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    if operator.name in b.attentions:
        parts = b.attentions[operator.name]
        mask = [] if parts.mask is None else [torch.from_numpy(np.array(parts.mask, np.float32))]
        return Function(parts.call, *mask), (parts.query, parts.keys, parts.values)
    if b.constant(operator.inputs[1]) is None:
        return Function(torch.matmul), operator.inputs
    bias = b.biases.get(operator.name)
    added = None
    if bias is not None:
        added = next(a for n in bias.inputs if (a := b.constant(n)) is not None)
    return _product(b, b.array(operator, 1).T, added), operator.inputs[:1]


def _batch_norm(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    if len([name for name in operator.outputs if name]) > 1:
        raise Untraceable("it is written as in training; export the model in evaluation mode")
    scale, shift, mean, variance = (b.array(operator, n) for n in range(1, 5))
    images = len(b.shape(operator.inputs[0])) == 4
    module = (nn.BatchNorm2d if images else nn.BatchNorm1d)(
        len(scale),
        eps=_number(operator, "epsilon", 1e-5),
        momentum=1 - _number(operator, "momentum", 0.9),
    )
    module.running_mean = torch.from_numpy(np.array(mean, np.float32))
    module.running_var = torch.from_numpy(np.array(variance, np.float32))
    return _with_weights(b, module, scale, shift), operator.inputs[:1]


def _layer_norm(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    rank = len(b.shape(operator.inputs[0]))
    scale, shift = b.array(operator, 1), b.optional(operator, 2)
    if integer(operator, "axis", -1) % rank != rank - 1 or shift is None:
        raise Untraceable("it normalizes several axes, or has no weights")
    module = nn.LayerNorm(len(scale), eps=_number(operator, "epsilon", 1e-5), device="meta")
    return _with_weights(b, module, scale, shift), operator.inputs[:1]


def _max_pool(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    kernel, stride = _pairs(operator, "kernel_shape", 1), _pairs(operator, "strides", 1)
    module = nn.MaxPool2d(
        kernel,
        stride,
        _padding(b, operator, kernel, stride),
        dilation=_pairs(operator, "dilations", 1),
        ceil_mode=bool(integer(operator, "ceil_mode", 0)),
    )
    return module, operator.inputs[:1]


def _average_pool(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    kernel, stride = _pairs(operator, "kernel_shape", 1), _pairs(operator, "strides", 1)
    padding = _padding(b, operator, kernel, stride)
    if set(_pairs(operator, "dilations", 1)) != {1}:
        raise Untraceable("it is dilated")
    module = nn.AvgPool2d(
        kernel,
        stride,
        padding,
        ceil_mode=bool(integer(operator, "ceil_mode", 0)),
        count_include_pad=bool(integer(operator, "count_include_pad", 0)) or not any(padding),
    )
    return module, operator.inputs[:1]


def _of_each(make: Callable[[Operator], nn.Module]) -> Build:
    """A function of each element of the first input."""
    return lambda b, operator: (make(operator), operator.inputs[:1])


def _clip(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    limits = [
        None if (found := b.optional(operator, n)) is None else float(found.reshape(()))
        for n in (1, 2)
    ]
    return Function(lambda x: torch.clamp(x, *limits)), operator.inputs[:1]


def _hard_sigmoid(operator: Operator) -> nn.Module:
    slope, shift = _number(operator, "alpha", 0.2), _number(operator, "beta", 0.5)
    return Function(lambda x: torch.clamp(x * slope + shift, 0.0, 1.0))


def _arithmetic(call: Callable[[Any, Any], Any]) -> Build:
    """A function of two values, or of one and a constant."""

    def make(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
        one, two = operator.inputs
        arrays = [b.constant(name) for name in (one, two)]
        if operator.name in b.roots:
            (inner,) = b.roots[operator.name].inputs
            if arrays[0] is not None:  # 1 / √y
                return Function(torch.rsqrt), (inner,)
            return Function(lambda x, y: x * torch.rsqrt(y)), (one, inner)
        if arrays[0] is None and arrays[1] is None:
            return Function(call), (one, two)
        first = arrays[0] is not None
        value = two if first else one
        number = b.scalar(one if first else two)
        if number is not None:
            scalar = number
            swapped: Callable[[Tensor], Any] = lambda x: call(scalar, x)  # noqa: E731
            return Function(swapped if first else lambda x: call(x, scalar)), (value,)
        array = arrays[0] if first else arrays[1]
        assert array is not None
        if operator.kind == "Add":
            return _sum(b, b.shape(value), array), (value,)
        how = call
        if operator.kind == "Div" and not first:
            array, how = 1 / array, operator_module.mul
        if operator.kind == "Mul" or (operator.kind == "Div" and not first):
            return Function(how, _factors(b, array)), (value,)
        raise Untraceable("it has a constant of several elements")

    return make


def _factors(b: Building, array: Array) -> Tensor:
    """A factor of each channel as weights; other factors are constants."""
    if sum(n > 1 for n in array.shape) <= 1:
        return b.parameter(array)
    return torch.from_numpy(np.array(array, np.float32))


def _sum(b: Building, shape: tuple[int, ...], array: Array) -> nn.Module:
    """What is added to values of this shape, as weights: to a sequence a vector for each position,
    or one for all of them."""
    if len(shape) == 3 and array.ndim <= 3:
        array = array.reshape((1,) * (3 - array.ndim) + array.shape)
        array = array[:1] if (array == array[:1]).all() else array  # of each sample
        if len(array) == 1 and array.shape[2] == shape[2] and (array == array[:, :1]).all():
            places = torch.zeros(1, shape[1], dtype=torch.int64)

            def added(x: Tensor, table: Tensor) -> Tensor:
                return x + F.embedding(places, table)

            return Function(added, b.parameter(array[0, :1]))
    return Function(torch.add, b.parameter(array))


def _reciprocal(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    if operator.name in b.roots:
        return Function(torch.rsqrt), b.roots[operator.name].inputs
    return Function(torch.reciprocal), operator.inputs


def _power(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    exponent = float(b.array(operator, 1).reshape(()))
    return Function(lambda x: torch.pow(x, exponent)), operator.inputs[:1]


def _mean(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    axes = operator.attributes.get("axes")
    if axes is None:
        axes = tuple(b.array(operator, 1).tolist())
    keep = bool(integer(operator, "keepdims", 1))
    dims = [int(n) for n in axes]  # type: ignore[union-attr]
    return Function(lambda x: x.mean(dims, keepdim=keep)), operator.inputs[:1]


def _reshape(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    given = b.shape(operator.inputs[0])
    lengths = [int(n) for n in b.array(operator, 1)]
    if not integer(operator, "allowzero", 0):
        lengths = [given[i] if n == 0 else n for i, n in enumerate(lengths)]
    return Function(lambda x: x.reshape(lengths)), operator.inputs[:1]


def _flatten(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    given = b.shape(operator.inputs[0])
    axis = integer(operator, "axis", 1)
    if axis % len(given) == 1:
        return Function(lambda x: torch.flatten(x, 1)), operator.inputs[:1]
    rows = int(np.prod(given[:axis]))
    return Function(lambda x: x.reshape(rows, -1)), operator.inputs[:1]


def _transpose(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    axes = operator.attributes.get("perm")
    order: Any = axes or tuple(reversed(range(len(b.shape(operator.inputs[0])))))
    return Function(lambda x: x.permute(*order)), operator.inputs[:1]


def _with_shape(operator: Operator, lengths: Sequence[int]) -> tuple[nn.Module, tuple[str, ...]]:
    return Function(lambda x: x.reshape(lengths)), operator.inputs[:1]


def _squeeze(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    given = b.shape(operator.inputs[0])
    axes = b.optional(operator, 1)
    chosen = range(len(given)) if axes is None else [int(n) % len(given) for n in axes.reshape(-1)]
    left = [n for i, n in enumerate(given) if i not in chosen or n != 1]
    return _with_shape(operator, left)


def _unsqueeze(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    given = list(b.shape(operator.inputs[0]))
    axes = b.array(operator, 1).reshape(-1)
    rank = len(given) + len(axes)
    for axis in sorted(int(n) % rank for n in axes):
        given.insert(axis, 1)
    return _with_shape(operator, given)


def _concat(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    axis = integer(operator, "axis", 1)
    arrays = [b.constant(name) for name in operator.inputs]
    given = tuple(n for n, a in zip(operator.inputs, arrays, strict=True) if a is None)
    if len(given) == len(arrays):
        return Function(lambda *x: torch.cat(x, axis)), given
    first = arrays[0]
    if first is None or len(arrays) != 2 or first.ndim != 3 or not (first == first[:1]).all():
        raise Untraceable("it concatenates constants")

    def with_token(x: Tensor, token: Tensor) -> Tensor:
        return torch.cat([token.expand(len(x), -1, -1), x], axis)

    return Function(with_token, b.parameter(first[:1])), given


def _expand(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    lengths = tuple(int(n) for n in b.array(operator, 1))
    shape = np.broadcast_shapes(b.shape(operator.inputs[0]), lengths)
    return Function(lambda x: x.expand(*shape)), operator.inputs[:1]


def _split(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    axis, sizes = integer(operator, "axis", 0), b.optional(operator, 1)
    length = b.shape(operator.inputs[0])[axis]
    part = -(-length // len(operator.outputs))
    parts = part if sizes is None else [int(n) for n in sizes]
    return Function(lambda x: torch.split(x, parts, axis)), operator.inputs[:1]


def _slice(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    rank = len(b.shape(operator.inputs[0]))
    starts, ends = (b.array(operator, n).reshape(-1).tolist() for n in (1, 2))
    given, strides = b.optional(operator, 3), b.optional(operator, 4)
    axes = range(len(starts)) if given is None else given.reshape(-1).tolist()
    steps = [1] * len(starts) if strides is None else strides.reshape(-1).tolist()
    if min(steps) < 1:
        raise Untraceable("it reverses values")
    parts = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        parts[axis % rank] = slice(start, end, step)
    return Function(lambda x: x[tuple(parts)]), operator.inputs[:1]


def _gather(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    table, axis = b.constant(operator.inputs[0]), integer(operator, "axis", 0)
    if table is not None:
        if table.ndim != 2 or axis != 0:
            raise Untraceable("it looks up other rows than those of a table")
        module = nn.Embedding(table.shape[0], table.shape[1], device="meta")
        module.weight = b.parameter(table)
        return module, operator.inputs[1:]
    places = b.array(operator, 1)
    length = b.shape(operator.inputs[0])[axis]
    wanted = [int(n) % length for n in places.reshape(-1)]
    if not places.shape:
        return Function(lambda x: x.select(axis, wanted[0])), operator.inputs[:1]
    first, last = wanted[0], wanted[-1] + 1
    if places.ndim != 1 or wanted != list(range(first, last)):
        raise Untraceable("it takes other values than neighbours")
    return Function(lambda x: x.narrow(axis, first, last - first)), operator.inputs[:1]


def _cast(b: Building, operator: Operator) -> tuple[nn.Module, tuple[str, ...]]:
    (name,) = operator.inputs
    to = _TYPES.get(integer(operator, "to", 0))
    given = b.values[name].dtype
    if to is None or given.is_floating_point != (to == "float"):
        raise Untraceable("it converts between types")
    return nn.Identity(), (name,)


_TYPES = {1: "float", 10: "float", 11: "float", 6: "integer", 7: "integer"}
"""ONNX's number of a type → kind; floats of 16, 32 and 64 bits are one here."""


OPERATORS: dict[str, Build] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _of_each(lambda o: nn.AdaptiveAvgPool2d(1)),
    "Relu": _of_each(lambda o: nn.ReLU()),
    "Sigmoid": _of_each(lambda o: nn.Sigmoid()),
    "Tanh": _of_each(lambda o: nn.Tanh()),
    "Gelu": _of_each(lambda o: nn.GELU(str(o.attributes.get("approximate", "none")))),
    "Erf": _of_each(lambda o: Function(torch.erf)),
    "Exp": _of_each(lambda o: Function(torch.exp)),
    "Neg": _of_each(lambda o: Function(torch.neg)),
    "HardSwish": _of_each(lambda o: nn.Hardswish()),
    "HardSigmoid": _of_each(_hard_sigmoid),
    "LeakyRelu": _of_each(lambda o: nn.LeakyReLU(_number(o, "alpha", 0.01))),
    "Mish": _of_each(lambda o: nn.Mish()),
    "Softmax": _of_each(lambda o: nn.Softmax(integer(o, "axis", -1))),
    "Identity": _of_each(lambda o: nn.Identity()),
    "Dropout": _of_each(lambda o: nn.Identity()),
    "Sqrt": _of_each(lambda o: Function(torch.sqrt)),
    "Clip": _clip,
    "Add": _arithmetic(torch.add),
    "Sub": _arithmetic(torch.sub),
    "Mul": _arithmetic(torch.mul),
    "Div": _arithmetic(torch.div),
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "ReduceMean": _mean,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Expand": _expand,
    "Slice": _slice,
    "Gather": _gather,
    "Cast": _cast,
}
"""Operator → its module and the values that it reads."""
