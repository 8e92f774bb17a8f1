"""A network's forward pass with its fusions: which operation runs each of them, and in what order?

`networks/fusion.py` finds them in the graph. What is in none runs as in the eager program, with the
same modules and arrays, but for what is only another way to compute the same: max pooling by
kernels that remember the winner; on a GPU a first convolution of few channels over folded images,
1×1 convolutions that take the sums of the normalisation after them, and the conversions of weights
under autocast, made a segment at a time; on a CPU ReLUs fused with convolutions and with max
pooling, 1×1 convolutions joined with the normalisation after them, convolutions by other
algorithms, and dropout that draws its numbers many at a time. Scores of attention by a perceptron
are kernels on a GPU.

Each of these is used where it was measured to be faster, on this device and for the shapes of the
run (`tune`), and nowhere before that. The list of steps is gone through in Python, which costs the
host a little for each: on a GPU it is meant for steps that are captured, where the host calls
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.additive_attention import FusedScores
from cubemesh.frameworks.pytorch.fused.batch_norm import FusedNorm
from cubemesh.frameworks.pytorch.fused.conv import FusedConv, other_algorithm
from cubemesh.frameworks.pytorch.fused.dropout import FusedDropout
from cubemesh.frameworks.pytorch.fused.pool import FusedPool
from cubemesh.frameworks.pytorch.fused.side_stream import Beside, convolve
from cubemesh.frameworks.pytorch.fused.space_to_depth_conv import DepthConv
from cubemesh.frameworks.pytorch.module import Built
from cubemesh.frameworks.pytorch.precision.master_weight_cast import PlaceOf, narrowed, nowhere
from cubemesh.kernels.cpu.autotune import HostTuning
from cubemesh.kernels.triton.conv1x1_bn_stats import SummedConv
from cubemesh.networks.fusion import NormFusion, ReluFusion, ScoreFusion, Step, fused_steps, reads
from cubemesh.networks.graph import Node

BESIDE_SAMPLES = 128
"""Of a minibatch, up to which weight gradients run beside the rest: on an H200 ResNet-50 gains 4 %
by it at 32, nothing at 256, and loses 1.6 % at 512 (benchmarks/LOG.md)."""

Run = Callable[..., Tensor]


class FusedNetwork:
    """A built network's forward pass for training, from its inputs to its heads' values."""

    def __init__(self, built: Built) -> None:
        network = built.network
        self._on_host = all(p.device.type == "cpu" for p in built.parameters.values())
        self.steps = fused_steps(network, relus=self._on_host)
        self._reads = reads(network, self.steps)
        self._inputs = [i.name for i in network.inputs]
        self._heads = [head.value for head in network.heads]
        self.operations: list[nn.Module] = []
        """What runs each step."""
        self.norms: dict[str, FusedNorm] = {}
        """By the name of the value that is made."""
        for step in self.steps:
            self.operations.append(self._operation(step, built.layers))
        self.lack = ""
        """Why it has no kernels of its own on a CPU, where some could have been used."""
        self.narrows = False
        """Whether weights are narrowed together; under an autocast that `tune` was called under."""
        self.beside: Beside | None = None
        """Where weight gradients run, on a GPU."""
        self.place_of: PlaceOf = nowhere
        """Where a weight's gradient is to be written."""
        self._segments = _weights_by_segment(self.steps, self.operations)
        self._sums: Tensor | None = None
        """What kernels add to in a step, on a GPU."""

    def _operation(self, step: Step, layers: Mapping[str, nn.Module]) -> nn.Module:
        """What runs a step; until it is tuned, as PyTorch's own operations."""
        if isinstance(step, NormFusion):
            norm = layers[step.norm.name]
            assert isinstance(norm, nn.BatchNorm2d)
            self.norms[step.last.name] = fused = FusedNorm(
                norm,
                adds=step.residual is not None,
                rectifies=step.rectifies,
                readers=self._reads[step.last.name],
            )
            return fused
        if isinstance(step, ScoreFusion):
            product = layers[step.last.name]
            assert isinstance(product, nn.Linear)
            return FusedScores(product)
        rectifies = isinstance(step, ReluFusion)
        layer = layers[step.main.name if isinstance(step, ReluFusion) else step.name]
        if isinstance(layer, nn.MaxPool2d):
            return FusedPool(layer, rectifies=rectifies)
        other = self._on_host and isinstance(layer, nn.Conv2d) and other_algorithm(layer)
        if rectifies or other:
            assert isinstance(layer, nn.Conv2d)
            return FusedConv(layer, rectifies=rectifies)
        if self._on_host and type(layer) is nn.Dropout:
            return FusedDropout(layer)
        return layer

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Images (batch, channels, height, width), or what else the network's inputs are → each
        head's value, (batch, classes)."""
        return self._forward(inputs, lambda number, given: self._apply(number, given))

    def _apply(self, number: int, given: list[Tensor]) -> Tensor | Sequence[Tensor]:
        made: Tensor | Sequence[Tensor] = self.operations[number](*given)
        return made

    def _forward(
        self,
        inputs: Sequence[Tensor],
        apply: Callable[[int, list[Tensor]], Tensor | Sequence[Tensor]],
    ) -> tuple[Tensor, ...]:
        values = {
            name: [array] * self._reads[name]
            for name, array in zip(self._inputs, inputs, strict=True)
        }
        if self._sums is not None:
            self._sums.zero_()
        weights: dict[int, Tensor] = {}
        for number, step in enumerate(self.steps):
            given = [values[name].pop() for name in step.inputs]
            name = step.name if isinstance(step, Node) else step.last.name
            if self._narrows_here(number, inputs[0].device.type):
                if number not in weights:  # the first of its segment
                    weights.update(self._narrow_weights(number, inputs[0]))
                made: Tensor | Sequence[Tensor] = self._product(number, weights[number])(*given)
            else:
                made = apply(number, given)
            del given
            values[name] = [made] * self._reads[name] if isinstance(made, Tensor) else list(made)
        return tuple(values[name].pop() for name in self._heads)

    def _narrows_here(self, number: int, kind: str) -> bool:
        """Whether a step multiplies by a weight that is narrowed with its segment's."""
        return self.narrows and torch.is_autocast_enabled(kind) and number in self._segments

    def _narrow_weights(self, number: int, fed: Tensor) -> dict[int, Tensor]:
        """Number of each step of the same segment that multiplies → its weight, in the type that
        autocast wants."""
        if fed.device.type == "cuda" and self.beside is None and len(fed) <= BESIDE_SAMPLES:
            self.beside = Beside(fed.device)
        joined = (lambda: None) if self.beside is None else self.beside.join
        weights, dtype = self._segments[number], torch.get_autocast_dtype(fed.device.type)
        made = narrowed(list(weights.values()), dtype, joined, self.place_of)
        return dict(zip(weights, made, strict=True))

    def _product(self, number: int, weight: Tensor) -> Run:
        """What a step does, with `weight` in place of its own."""
        op = self.operations[number]
        if isinstance(op, DepthConv):
            return partial(op, weight=weight)
        if isinstance(op, SummedConv):
            return partial(op, weight=weight, beside=self.beside)
        if isinstance(op, nn.Linear):
            return lambda x: F.linear(x, weight, op.bias)
        assert isinstance(op, nn.Conv2d)
        if self.beside is not None and op.bias is None:
            return partial(convolve, weight=weight, conv=op, beside=self.beside)
        return lambda x: op._conv_forward(x, weight, op.bias)

    def tune(self, *inputs: Tensor) -> None:
        """Choose for every step what it runs as, for inputs of this shape: kernels where they can
        be used and are faster than PyTorch's own operations. Call it as a step's forward pass is
        called, under its autocast; running statistics hold anything after it."""
        kind = inputs[0].device.type
        if kind == "cpu":
            self._tune_on_host(inputs)
        if kind == "cuda" and find_spec("triton") is not None:
            self._tune_on_gpu(inputs)

    def _tune_on_gpu(self, inputs: Sequence[Tensor]) -> None:
        from cubemesh.kernels.gpu_autotune import GpuTuning

        makers = {norm: m for norm, m in self.makers().items() if m in self._segments}
        tuning = GpuTuning(self.operations, makers)

        def tuned(number: int, given: list[Tensor]) -> Tensor | Sequence[Tensor]:
            tuning.choose(number, given, fed=self._reads_input(number))
            return self._apply(number, given)

        self.narrows = False
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a weight narrowed without gradient stays so
        try:
            with torch.no_grad():
                self._forward(inputs, tuned)
        finally:
            torch.set_autocast_cache_enabled(cached)
        self.narrows = True
        self._sums = tuning.finish()

    def _tune_on_host(self, inputs: Sequence[Tensor]) -> None:
        """The same on a CPU."""
        tuning, makers = HostTuning(), self.makers()
        taken: dict[int, Tensor] = {}  # number of a maker → what it was given

        def tuned(number: int, given: list[Tensor]) -> Tensor | Sequence[Tensor]:
            tuning.choose(self.operations[number], given[0], fed=self._reads_input(number))
            if number in makers.values():
                taken[number] = given[0]
            if number in makers:
                maker, x = makers[number], taken.pop(makers[number])
                one = tuning.joined(self.operations[maker], self.operations[number], x)
                if one is not None:
                    self.operations[maker], self.operations[number] = nn.Identity(), one
                    given[0] = x
            return self._apply(number, given)

        with torch.no_grad():
            self._forward(inputs, tuned)
        self.lack = tuning.lack

    def makers(self) -> dict[int, int]:
        """Number of each batch normalisation → of the layer that makes its input, where nobody else
        reads that."""
        numbers = {step.name: n for n, step in enumerate(self.steps) if isinstance(step, Node)}
        found = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, NormFusion):
                made = step.norm.inputs[0]
                if made in numbers and self._reads[made] == 1:
                    found[number] = numbers[made]
        return found

    def _reads_input(self, number: int) -> bool:
        """Whether a step reads what the network is fed, which needs no gradient."""
        return set(self.steps[number].inputs) <= set(self._inputs)


def _weights_by_segment(
    steps: Sequence[Step], run: Sequence[nn.Module]
) -> dict[int, dict[int, Tensor]]:
    """Number of each convolution and product → those of its segment, with their weights; a weight
    that several layers share, whatever they are, is left to autocast."""
    weights = {n: op.weight for n, op in enumerate(run) if isinstance(op, (nn.Conv2d, nn.Linear))}
    shared = [id(parameter) for op in run for parameter in op.parameters()]
    segments: dict[str, dict[int, Tensor]] = {}
    for number, weight in weights.items():
        step = steps[number]
        if isinstance(step, Node) and shared.count(id(weight)) == 1:
            segments.setdefault(step.segment, {})[number] = weight
    return {number: own for own in segments.values() for number in own}
