"""Fused network: a network's forward pass with its fusions, each run by the fastest kernels.

`networks/fusion.py` finds the fusions in the graph; other layers run as in the eager program, with
the same modules and arrays. `kernels/` has the implementations:

    GPU    batch normalization with residual add and ReLU, max pooling with a stored argmax, average
           pooling, a first convolution of few channels by space to depth, 1×1 convolutions that
           compute the sums of the batch normalization after them, convolution with bias, ReLU and
           max pooling, additive attention scores; weights cast to low precision a segment at a time
    CPU    the same batch normalization and max pooling, convolution with ReLU, 1×1 convolution with
           batch normalization, convolution by Winograd or GEMM, dropout by Philox

Each is used only where it measured faster on this device for the shapes of the run (`tune`). The
loop over the steps in Python costs the host a little per step: on a GPU it is meant for captured
steps, which the host only replays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.module import BuiltNetwork
from cubemesh.frameworks.pytorch.precision.float8_linear import Float8Linear
from cubemesh.frameworks.pytorch.precision.low_precision_weights import LowPrecisionWeights
from cubemesh.frameworks.pytorch.precision.master_weight_cast import (
    PlaceOf,
    cast_together,
    no_destination,
)
from cubemesh.kernels.cpu.autotune import CpuAutotuner
from cubemesh.kernels.fused.additive_attention import FusedAttentionScores
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv import FusedConv, alternative_algorithm
from cubemesh.kernels.fused.conv_relu import FusedConvRelu
from cubemesh.kernels.fused.dropout import FusedDropout
from cubemesh.kernels.fused.pool import FusedAveragePool, FusedMaxPool
from cubemesh.kernels.fused.side_stream import SideStream, convolve
from cubemesh.kernels.fused.space_to_depth_conv import SpaceToDepthConv
from cubemesh.kernels.triton.conv1x1_bn_stats import Conv1x1WithStats
from cubemesh.networks.fusion import (
    ConvFusion,
    NormFusion,
    ReluFusion,
    ScoreFusion,
    Step,
    fused_steps,
    reads,
)
from cubemesh.networks.graph import Node

SIDE_STREAM_BATCH = 128
"""Largest batch size with weight gradients on a side stream: on an H200 ResNet-50 gains 4 % at 32,
nothing at 256, and loses 1.6 % at 512 (benchmarks/LOG.md)."""

Run = Callable[..., Tensor]
Apply = Callable[[int, list[Tensor]], Tensor | Sequence[Tensor]]
"""(number of a step, its inputs) → its result, one for each reader where it is a sequence."""
Values = dict[str, list[Tensor]]
"""Name of a value → what its remaining readers receive."""


class FusedNetwork:
    """A built network's forward pass for training, from its inputs to its heads' values."""

    def __init__(self, built: BuiltNetwork) -> None:
        network = built.network
        self._on_cpu = all(p.device.type == "cpu" for p in built.parameters.values())
        self.steps = fused_steps(network, relus="pairs" if self._on_cpu else "chains")
        self.reads = reads(network, self.steps)
        self._inputs = [i.name for i in network.inputs]
        self.heads = [head.value for head in network.heads]
        self.operations: list[nn.Module] = []
        """The operation of each step."""
        self.norms: dict[str, FusedBatchNorm] = {}
        """By the name of the value that they compute."""
        for step in self.steps:
            self.operations.append(self._operation(step, built.layers))
        self.unavailable_reason = ""
        """Why kernels are unavailable on a CPU, where some could have been used."""
        self.casts_by_segment = False
        """Whether weights are cast to low precision together; under the autocast of `tune`."""
        self.side_stream: SideStream | None = None
        """The stream of weight gradients, on a GPU."""
        self.place_of: PlaceOf = no_destination
        """The array that a weight's gradient is written to."""
        self._segments = _weights_by_segment(self.steps, self.operations)
        self._copies: dict[int, Tensor] = {}
        """Number of a step → the low-precision copy of its weight."""
        self._sums: Tensor | None = None
        """The sums of all batch normalizations, on a GPU."""

    def _operation(self, step: Step, layers: Mapping[str, nn.Module]) -> nn.Module:
        """The operation of a step; before `tune` it runs as PyTorch's own operations."""
        if isinstance(step, NormFusion):
            norm = layers[step.norm.name]
            assert isinstance(norm, nn.BatchNorm2d)
            self.norms[step.last.name] = fused = FusedBatchNorm(
                norm,
                add=step.residual is not None,
                relu=step.relu,
                readers=self.reads[step.last.name],
            )
            return fused
        if isinstance(step, ScoreFusion):
            product = layers[step.last.name]
            assert isinstance(product, nn.Linear)
            return FusedAttentionScores(product)
        if isinstance(step, ConvFusion):
            conv, pool = layers[step.conv.name], step.pool and layers[step.pool.name]
            assert isinstance(conv, nn.Conv2d)
            assert pool is None or isinstance(pool, nn.MaxPool2d)
            return FusedConvRelu(conv, pool)
        relu = isinstance(step, ReluFusion)
        layer = layers[step.main.name if isinstance(step, ReluFusion) else step.name]
        if isinstance(layer, nn.MaxPool2d):
            return FusedMaxPool(layer, relu=relu)
        if isinstance(layer, nn.AvgPool2d) and not self._on_cpu:
            return FusedAveragePool(layer)
        other = self._on_cpu and isinstance(layer, nn.Conv2d) and alternative_algorithm(layer)
        if relu or other:
            assert isinstance(layer, nn.Conv2d)
            return FusedConv(layer, relu=relu)
        if self._on_cpu and type(layer) is nn.Dropout:
            return FusedDropout(layer)
        return layer

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Images (batch, channels, height, width), or what else the network's inputs are → the
        value of each head, (batch, classes)."""
        return self._forward(inputs, self.apply)

    def apply(self, number: int, given: list[Tensor]) -> Tensor | Sequence[Tensor]:
        """The result of a step; one for each reader where it is a sequence."""
        made: Tensor | Sequence[Tensor] = self.operations[number](*given)
        return made

    def _forward(self, inputs: Sequence[Tensor], apply: Apply) -> tuple[Tensor, ...]:
        values = self.begin(inputs)
        self.run(range(len(self.steps)), values, apply)
        return tuple(values[name].pop() for name in self.heads)

    def begin(self, inputs: Sequence[Tensor]) -> Values:
        """The values before the first step."""
        if self._sums is not None:
            self._sums.zero_()
        return {
            name: [array] * self.reads[name]
            for name, array in zip(self._inputs, inputs, strict=True)
        }

    def run(self, numbers: range, values: Values, apply: Apply | None = None) -> None:
        """Run the steps `numbers`: take what they read from `values`, and add what they compute."""
        apply, kind = apply or self.apply, "cpu" if self._on_cpu else "cuda"
        weights: dict[int, Tensor] = {}
        for number in numbers:
            step = self.steps[number]
            given = [values[name].pop() for name in step.inputs]
            name = step.name if isinstance(step, Node) else step.last.name
            if number in self._copies and torch.is_autocast_enabled(kind):
                made: Tensor | Sequence[Tensor] = self._product(number, self._copies[number])(
                    *given
                )
            elif self._is_cast(number, kind):
                if number not in weights:  # the first of its segment
                    weights.update(self._cast_weights(number, given[0], numbers))
                made = self._product(number, weights[number])(*given)
            else:
                made = apply(number, given)
            del given
            values[name] = [made] * self.reads[name] if isinstance(made, Tensor) else list(made)

    def product_weights(self) -> list[nn.Parameter]:
        """The weights of convolutions and products that a single step reads."""
        found = [weights[number] for number, weights in self._segments.items()]
        return [weight for weight in found if isinstance(weight, nn.Parameter)]

    def use_copies(self, weights: LowPrecisionWeights) -> None:
        """Read the low-precision copies of weights, where there are any."""
        for number, segment in list(self._segments.items()):
            copy = weights.copy_of(segment[number])
            if copy is not None:
                self._copies[number] = copy
                del self._segments[number]
        for segment in self._segments.values():
            for number in self._copies:
                segment.pop(number, None)

    def join(self) -> None:
        """Make the current stream wait for all weight gradients."""
        if self.side_stream is not None:
            self.side_stream.join()

    def _is_cast(self, number: int, kind: str) -> bool:
        """Whether the weight of a step is cast with its segment's."""
        return (
            self.casts_by_segment and torch.is_autocast_enabled(kind) and number in self._segments
        )

    def _cast_weights(self, number: int, x: Tensor, numbers: range) -> dict[int, Tensor]:
        """Number of each convolution and product of the same segment, of those in `numbers` → its
        weight, in the type of autocast; `x`: the input of the first of them."""
        if x.device.type == "cuda" and self.side_stream is None and len(x) <= SIDE_STREAM_BATCH:
            self.side_stream = SideStream(x.device)
        join = (lambda: None) if self.side_stream is None else self.side_stream.join
        weights = {n: weight for n, weight in self._segments[number].items() if n in numbers}
        dtype = torch.get_autocast_dtype(x.device.type)
        made = cast_together(list(weights.values()), dtype, join, self.place_of)
        return dict(zip(weights, made, strict=True))

    def _product(self, number: int, weight: Tensor) -> Run:
        """The operation of a step, with `weight` in place of its own."""
        op = self.operations[number]
        if isinstance(op, (SpaceToDepthConv, FusedConvRelu)):
            return partial(op, weight=weight)
        if isinstance(op, Conv1x1WithStats):
            return partial(op, weight=weight, side_stream=self.side_stream)
        if isinstance(op, Float8Linear):
            return lambda x: op.product(x, weight)
        if isinstance(op, nn.Linear):
            return lambda x: F.linear(x, weight, op.bias)
        assert isinstance(op, nn.Conv2d)
        if self.side_stream is not None and op.bias is None:
            return partial(convolve, weight=weight, conv=op, side_stream=self.side_stream)
        return lambda x: op._conv_forward(x, weight, op.bias)

    def tune(self, *inputs: Tensor) -> None:
        """Choose the implementation of every step for inputs of this shape: kernels where they are
        supported and faster than PyTorch's own operations. Call it under the autocast of the
        step; running statistics are undefined afterwards."""
        kind = inputs[0].device.type
        if kind == "cpu":
            self._tune_on_cpu(inputs)
        if kind == "cuda" and find_spec("triton") is not None:
            self._tune_on_gpu(inputs)

    def _tune_on_gpu(self, inputs: Sequence[Tensor]) -> None:
        from cubemesh.kernels.triton.autotune import GpuAutotuner

        producers = {norm: m for norm, m in self.producers().items() if m in self._segments}
        tuning = GpuAutotuner(self.operations, producers)

        def tuned(number: int, given: list[Tensor]) -> Tensor | Sequence[Tensor]:
            tuning.choose(number, given, network_input=self._reads_input(number))
            return self.apply(number, given)

        self.casts_by_segment = False
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a cast without gradient would stay cached
        try:
            with torch.no_grad():
                self._forward(inputs, tuned)
        finally:
            torch.set_autocast_cache_enabled(cached)
        self.casts_by_segment = True
        self._sums = tuning.finish()

    def _tune_on_cpu(self, inputs: Sequence[Tensor]) -> None:
        """The same on a CPU."""
        tuning, producers = CpuAutotuner(), self.producers()
        inputs_of: dict[int, Tensor] = {}  # number of a producer → its input

        def tuned(number: int, given: list[Tensor]) -> Tensor | Sequence[Tensor]:
            tuning.choose(
                self.operations[number], given[0], network_input=self._reads_input(number)
            )
            if number in producers.values():
                inputs_of[number] = given[0]
            if number in producers:
                producer, x = producers[number], inputs_of.pop(producers[number])
                one = tuning.fused_conv_batch_norm(
                    self.operations[producer], self.operations[number], x
                )
                if one is not None:
                    self.operations[producer], self.operations[number] = nn.Identity(), one
                    given[0] = x
            return self.apply(number, given)

        with torch.no_grad():
            self._forward(inputs, tuned)
        self.unavailable_reason = tuning.unavailable_reason

    def producers(self) -> dict[int, int]:
        """Number of each batch normalization → of the layer that computes its input, if it is the
        only reader."""
        numbers = {step.name: n for n, step in enumerate(self.steps) if isinstance(step, Node)}
        found = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, NormFusion):
                made = step.norm.inputs[0]
                if made in numbers and self.reads[made] == 1:
                    found[number] = numbers[made]
        return found

    def _reads_input(self, number: int) -> bool:
        """Whether a step reads only the network's input, which needs no gradient."""
        return set(self.steps[number].inputs) <= set(self._inputs)


def _weights_by_segment(
    steps: Sequence[Step], run: Sequence[nn.Module]
) -> dict[int, dict[int, Tensor]]:
    """Number of each convolution and product → those of its segment, with their weights; a weight
    shared by several layers is left to autocast."""
    weights = {}
    for number, op in enumerate(run):
        product = op.conv if isinstance(op, FusedConvRelu) else op
        if isinstance(product, (nn.Conv2d, nn.Linear)):
            weights[number] = product.weight
    shared = [id(parameter) for op in run for parameter in op.parameters()]
    segments: dict[str, dict[int, Tensor]] = {}
    for number, weight in weights.items():
        step = steps[number]
        node = step.conv if isinstance(step, ConvFusion) else step
        if isinstance(node, Node) and shared.count(id(weight)) == 1:
            segments.setdefault(node.segment, {})[number] = weight
    return {number: own for own in segments.values() for number in own}
