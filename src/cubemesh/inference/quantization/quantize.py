"""Quantized graphs: products in 8-bit integers, as QuantizeLinear and DequantizeLinear.

Activations are unsigned bytes with one scale, weights signed bytes with a scale for each output
channel, biases 32-bit integers. Engines recognize the pairs around an operator and run it in
integers: the value that a product reads is quantized once, for everything that reads it.

ONNX Runtime runs a convolution in integers only where its result is quantized too, and a residual
sum where all three values are; OpenVINO and own kernels need the inputs of products alone. So there
are two forms, `sums` or not, and a builder tries both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.inference.quantization.calibrate import Calibration
from cubemesh.inference.quantization.ranges import METHODS, Range, Uint8Scale, uint8_scale
from cubemesh.onnx.graph import Graph, Operator
from cubemesh.untrusted import quoted

WEIGHT_LEVELS = 127
"""Weights are from −127 to 127."""
REDUCED_WEIGHT_LEVELS = 63
"""CPUs without VNNI or AMX add two products of bytes in 16 bits, which saturate from 2^15:
2 · 255 · 63 does not."""
PRODUCTS = ("Conv", "Gemm", "MatMul")
_SHORTCUTS = (
    *("Dropout", "Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
)
"""Operators that only select or move elements of their first input, in any precision."""
_FUSED = ("BatchNormalization", "Clip", "Relu")
"""Operators that engines join with the product or sum before them."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
_LARGEST_BIAS = 1 << 30
"""In steps of its scale."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to quantize a network."""

    method: str
    """One of `METHODS`."""
    sums: bool
    """Whether sums, pools and results of convolutions are quantized too."""

    @property
    def name(self) -> str:
        """`entropy, products and sums`."""
        return f"{self.method}, products{' and sums' if self.sums else ''}"


CANDIDATES = tuple(Candidate(method=m, sums=sums) for m in METHODS for sums in (True, False))
"""What a builder tries."""


def quantizable(graph: Graph) -> tuple[str, ...]:
    """The names of the operators that can run in 8 bits: convolutions and products of an
    activation with constant weights, all finite."""
    return tuple(o.name for o in graph.operators if _is_quantizable(graph, o))


def observed_values(
    graph: Graph, operators: Collection[str] | None = None, sums: bool = True
) -> tuple[str, ...]:
    """The activations that `quantize` quantizes, by default for any of its forms: what to
    calibrate."""
    chosen = quantizable(graph) if operators is None else operators
    forms = (True, False) if sums else (False,)
    every = [v for form in forms for v in _plan(graph, chosen, form).values]
    return tuple(dict.fromkeys(every))


def quantize(
    graph: Graph,
    calibration: Calibration,
    method: str,
    operators: Collection[str] | None = None,
    sums: bool = True,
    *,
    correct_bias: bool = True,
    reduce_range: bool = False,
) -> Graph:
    """The graph with `operators`, by default all that are quantizable, in 8 bits.

    `sums`: residual sums, results of convolutions and what is between them as well.
    `correct_bias`: add to each bias what rounding the weights changes in the mean of the result
    (Nagel et al., Data-Free Quantization, 2019, section 4.2, with the means of the calibration).
    `reduce_range`: 7-bit weights, for CPUs without VNNI or AMX, on which sums of 8-bit products
    saturate. UsageError for an operator that is not quantizable or an activation that was not
    calibrated.
    """
    able = quantizable(graph)
    chosen = able if operators is None else tuple(dict.fromkeys(operators))
    unable = [name for name in chosen if name not in set(able)]
    if unable:
        raise UsageError(f"The operator {quoted(unable[0])} of {graph.name} cannot be quantized.")
    plan = _plan(graph, chosen, sums)
    scales = _scales(graph, plan, calibration, method)
    products = set(chosen)
    levels = REDUCED_WEIGHT_LEVELS if reduce_range else WEIGHT_LEVELS
    writer = _Writer(graph=graph, scales=scales)
    for value in graph.inputs:
        writer.quantize_value(value.name)
    for operator in graph.operators:
        if operator.name in products:
            means = _means(graph, operator, calibration) if correct_bias else None
            writer.write_product(operator, levels, means)
        else:
            writer.write(operator)
    return graph.with_operators(writer.operators, writer.constants)


# What is quantized


@dataclass
class _Plan:
    """The quantized values, and which one the scale of another is taken from."""

    values: dict[str, None] = field(default_factory=dict)
    same_scale: dict[str, str] = field(default_factory=dict)

    def add(self, *values: str) -> None:
        self.values.update(dict.fromkeys(values))

    def scale_of(self, value: str) -> str:
        while value in self.same_scale:
            value = self.same_scale[value]
        return value


def _plan(graph: Graph, operators: Collection[str], sums: bool) -> _Plan:
    plan = _Plan()
    chosen = [o for o in graph.operators if o.name in set(operators)]
    plan.add(*(o.inputs[0] for o in chosen))
    if sums:
        _add_results(graph, chosen, plan)
    # Quantizing before a maximum or a move gives the same numbers as quantizing after it, and
    # spares its float32.
    for operator in reversed(graph.operators):
        if operator.name in plan.values:
            for value in _moved(graph, operator):
                if graph.sole_consumer(value) is operator:
                    plan.add(value)
                    plan.same_scale[value] = operator.name
    for operator in graph.operators:
        if operator.kind in (*_SHORTCUTS, "Split") and operator.inputs[0] in plan.values:
            value = operator.inputs[0]
            for output in operator.outputs:
                if output in plan.values and plan.same_scale.get(value) != output:
                    plan.same_scale[output] = value
    return plan


def _add_results(graph: Graph, products: Sequence[Operator], plan: _Plan) -> None:
    """Add the results of convolutions, and the sums and concatenations that quantized values
    enter."""
    convolutions = {o.name for o in products if o.kind == "Conv"}
    for operator in graph.operators:
        read = operator.inputs
        if operator.name in convolutions:
            added: tuple[str, ...] = (_result(graph, operator),)
        elif operator.kind == "Add" and not any(i in graph.constants for i in read):
            joins = any(i in plan.values for i in read)
            added = (*read, _result(graph, operator)) if joins else ()
        elif operator.kind == "Concat" and all(i in plan.values for i in read):
            added = (operator.name,)
        else:
            continue
        plan.add(*(value for value in added if value not in graph.output_names))


def _result(graph: Graph, operator: Operator) -> str:
    """What an operator computes, after its activation or batch normalization."""
    value = operator.name
    while True:
        user = graph.sole_consumer(value)
        if user is None or user.kind not in _FUSED:
            return value
        value = user.name


def _moved(graph: Graph, operator: Operator) -> tuple[str, ...]:
    """The inputs whose elements the operator selects or moves; empty for other operators."""
    if operator.kind in _SHORTCUTS:
        values: tuple[str, ...] = operator.inputs[:1]
    elif operator.kind == "Concat":
        values = operator.inputs
    else:
        values = ()
    return () if any(v in graph.constants for v in values) else values


def _is_quantizable(graph: Graph, operator: Operator) -> bool:
    if operator.kind not in PRODUCTS or operator.inputs[0] in graph.constants:
        return False
    weight = graph.constant(operator.inputs[1])
    if weight is None or weight.dtype != np.float32 or not weight.size:
        return False
    bias = _bias(graph, operator)
    attributes = operator.attributes
    if operator.kind == "MatMul":
        fits = weight.ndim == 2
    elif operator.kind == "Conv":
        fits = weight.ndim >= 3 and bias is not None
    else:
        plain = attributes.get("alpha", 1.0) == 1 and attributes.get("beta", 1.0) == 1
        fits = plain and not attributes.get("transA", 0) and weight.ndim == 2 and bias is not None
    finite = np.isfinite(weight).all() and (bias is None or np.isfinite(bias).all())
    return bool(fits and finite)


def _bias(graph: Graph, operator: Operator) -> NDArray[np.float64] | None:
    """The bias of each output channel, 0 where there is none; None where it is not constant or
    not one for each channel."""
    channels = graph.constants[operator.inputs[1]].shape[_output_axis(operator)]
    if len(operator.inputs) < 3 or not operator.inputs[2]:
        return np.zeros(channels)
    bias = graph.constant(operator.inputs[2])
    fits = bias is not None and bias.size in (1, channels)
    if bias is None or not fits or bias.shape[-1:] not in ((), (bias.size,)):
        return None
    return np.broadcast_to(bias.reshape(-1), (channels,)).astype(np.float64)


def _output_axis(operator: Operator) -> int:
    """The axis of the output channels of the weight."""
    if operator.kind == "Conv" or operator.attributes.get("transB", 0):
        return 0
    return 1


def _scales(
    graph: Graph, plan: _Plan, calibration: Calibration, method: str
) -> Mapping[str, Uint8Scale]:
    found: dict[str, Uint8Scale] = {}
    for value in plan.values:
        source = plan.scale_of(value)
        if source not in calibration.histograms:
            raise UsageError(f"The activation {quoted(source)} of {graph.name} was not calibrated.")
        if source not in found:
            found[source] = uint8_scale(_range(calibration, source, method))
        found[value] = found[source]
    return {value: found[value] for value in plan.values}


def _range(calibration: Calibration, value: str, method: str) -> Range:
    key = (value, method)
    if key not in calibration.ranges:
        covered = METHODS[method](calibration.histograms[value])
        calibration.ranges[key] = (covered.low, covered.high)
    return Range(*calibration.ranges[key])


def _means(
    graph: Graph, operator: Operator, calibration: Calibration
) -> NDArray[np.float64] | None:
    """The mean of each input channel of a product; None where they were not observed."""
    observed = calibration.histograms.get(operator.inputs[0])
    shape = graph.constants[operator.inputs[1]].shape
    channels = shape[1 - _output_axis(operator)]
    if operator.kind == "Conv":
        groups = operator.attributes.get("group", 1)
        channels *= groups if isinstance(groups, int) else 1
    return observed.means if observed is not None and observed.means.size == channels else None


# How it is written


@dataclass
class _Writer:
    """The operators and constants of a quantized graph."""

    graph: Graph
    scales: Mapping[str, Uint8Scale]
    operators: list[Operator] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    biases: dict[str, dict[str, str]] = field(default_factory=dict)
    """Addition of a bias → the constant that it reads, and the corrected one."""

    def quantize_value(self, value: str) -> None:
        """Add the pair of `value`, where it is quantized."""
        scale = self.scales.get(value)
        if scale is None:
            return
        parameters = (
            self.constant(f"{value}/scale", np.float32(scale.scale)),
            self.constant(f"{value}/zero_point", np.uint8(scale.zero_point)),
        )
        self.add("QuantizeLinear", (value, *parameters), f"{value}/quantized")
        self.add("DequantizeLinear", (f"{value}/quantized", *parameters), f"{value}/dequantized")

    def write(self, operator: Operator) -> None:
        """Add an operator that stays, with quantized inputs."""
        corrected = self.biases.get(operator.name, {})
        read = tuple(corrected.get(i) or self.read(i) for i in operator.inputs)
        if not _divides_by_whole_windows(operator):
            self.operators.append(replace(operator, inputs=read))
        elif any(_integers(operator, "pads")):
            self.operators.append(operator)  # of float32
        else:
            # Without padding the two settings mean the same, and the other one is computed right.
            attributes = {**operator.attributes, "count_include_pad": 0}
            self.operators.append(replace(operator, inputs=read, attributes=attributes))
        for output in operator.outputs:
            self.quantize_value(output)

    def write_product(
        self, operator: Operator, levels: int, means: NDArray[np.float64] | None
    ) -> None:
        """Add a product in 8 bits."""
        source, weight_name = operator.inputs[:2]
        weight = self.graph.constants[weight_name].astype(np.float64)
        axis = _output_axis(operator)
        bias = _bias(self.graph, operator) if operator.kind != "MatMul" else None
        scale = _weight_scales(weight, axis, levels)
        if bias is not None:
            # Weights near 0 would have a scale in which the bias has no 32 bits.
            input_scale = self.scales[source].scale
            scale = np.maximum(scale, np.abs(bias) / (input_scale * _LARGEST_BIAS))
        stored = scale.astype(np.float32)
        scale = stored.astype(np.float64)
        whole = _rounded(weight, scale, axis, levels)
        shift = np.zeros(len(scale))
        if means is not None:
            error = weight - whole * _along(scale, axis, weight.ndim)
            shift = mean_shift(operator, error, means)
        name = operator.name
        inputs = [self.read(source), self.dequantized(f"{name}/weight", whole, stored, axis)]
        if bias is None:
            self._write_matmul(operator, inputs, shift if means is not None else None)
            return
        if len(operator.inputs) > 2 or means is not None:
            steps = np.maximum(self.scales[source].scale * scale, _LEAST_SCALE).astype(np.float32)
            limits = np.iinfo(np.int32)
            whole_bias = np.clip(np.rint((bias + shift) / steps), limits.min, limits.max)
            inputs.append(self.dequantized(f"{name}/bias", whole_bias.astype(np.int32), steps, 0))
        self.operators.append(replace(operator, inputs=tuple(inputs)))
        self.quantize_value(name)

    def _write_matmul(
        self, operator: Operator, inputs: Sequence[str], shift: NDArray[np.float64] | None
    ) -> None:
        """Add a matrix product; its correction becomes part of the bias that is added to it, or an
        addition of its own."""
        product = replace(operator, inputs=tuple(inputs))
        addition = self.graph.sole_consumer(operator.name)
        bias = "" if addition is None else _added_bias(self.graph, addition, operator.name)
        if shift is not None:
            name = f"{operator.name}/correction"
            whole = self.graph.constants[bias] + shift if bias else shift
            correction = self.constant(name, whole.astype(np.float32))
            if addition is not None and bias:
                self.biases[addition.name] = {bias: correction}
            else:
                product = replace(product, outputs=(f"{operator.name}/uncorrected",))
                self.operators.append(product)
                product = Operator(
                    kind="Add", inputs=(product.name, correction), outputs=operator.outputs
                )
        self.operators.append(product)
        self.quantize_value(operator.name)

    def read(self, value: str) -> str:
        """What an operator reads for `value`."""
        return f"{value}/dequantized" if value in self.scales else value

    def dequantized(
        self, name: str, integers: Array, scales: NDArray[np.float32], axis: int
    ) -> str:
        """Add the dequantization of constant integers, a scale for each index of `axis`."""
        inputs = (
            self.constant(f"{name}/quantized", integers),
            self.constant(f"{name}/scale", scales),
            self.constant(f"{name}/zero_point", np.zeros(scales.shape, integers.dtype)),
        )
        self.operators.append(
            Operator(
                kind="DequantizeLinear",
                inputs=inputs,
                outputs=(f"{name}/dequantized",),
                attributes={"axis": axis},
            )
        )
        return f"{name}/dequantized"

    def constant(self, name: str, array: Array | np.generic) -> str:
        """Add a constant; its name."""
        self.constants[name] = np.asarray(array)
        return name

    def add(self, kind: str, inputs: tuple[str, ...], output: str) -> None:
        """Add an operator without attributes."""
        self.operators.append(Operator(kind=kind, inputs=inputs, outputs=(output,)))


def _added_bias(graph: Graph, operator: Operator, value: str) -> str:
    """The constant vector that `operator` adds to `value`; '' where it does something else."""
    others = [i for i in operator.inputs if i != value]
    if operator.kind != "Add" or len(others) != 1:
        return ""
    bias = graph.constant(others[0])
    return others[0] if bias is not None and bias.ndim == 1 else ""


def _divides_by_whole_windows(operator: Operator) -> bool:
    """Whether ONNX Runtime averages wrongly in integers: it divides the sum of a window that hangs
    over the edge by the size of a whole one (1.32.0; its float32 does not)."""
    attributes = operator.attributes
    return bool(
        operator.kind == "AveragePool"
        and attributes.get("ceil_mode", 0)
        and attributes.get("count_include_pad", 0)
    )


def _integers(operator: Operator, attribute: str) -> tuple[int, ...]:
    found = operator.attributes.get(attribute, ())
    return tuple(int(n) for n in found) if isinstance(found, tuple) else ()


def mean_shift(
    operator: Operator, weight: NDArray[np.float64], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The mean of each output channel of a product with `weight`, given the mean of each input
    channel. Borders that a convolution pads are counted as if they were not."""
    if operator.kind != "Conv":
        return means @ (weight.T if _output_axis(operator) == 0 else weight)
    taps = weight.reshape(*weight.shape[:2], -1).sum(axis=2)
    groups = len(means) // weight.shape[1]
    of_group = means.reshape(groups, weight.shape[1])
    result: NDArray[np.float64] = np.einsum(
        "goi,gi->go", taps.reshape(groups, -1, weight.shape[1]), of_group
    ).reshape(-1)
    return result


def _weight_scales(weight: NDArray[np.float64], axis: int, levels: int) -> NDArray[np.float64]:
    others = tuple(n for n in range(weight.ndim) if n != axis)
    largest = np.abs(weight).max(axis=others)
    found: NDArray[np.float64] = np.where(largest > 0, largest / levels, 1.0)
    return np.maximum(found, _LEAST_SCALE)


def _rounded(
    weight: NDArray[np.float64], scale: NDArray[np.float64], axis: int, levels: int
) -> NDArray[np.int8]:
    steps = np.rint(weight / _along(scale, axis, weight.ndim))
    return np.clip(steps, -levels, levels).astype(np.int8)


def _along(values: NDArray[np.float64], axis: int, axes: int) -> NDArray[np.float64]:
    """A vector as an array of `axes` axes, along one of them."""
    return values.reshape([-1 if n == axis else 1 for n in range(axes)])
