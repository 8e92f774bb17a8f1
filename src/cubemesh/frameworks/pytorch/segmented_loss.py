"""The loss of a network by segments, each computed by the fastest implementation on this GPU.

    operations     PyTorch's own, layer by layer
    kernels        the same, with fused kernels where they are faster (`fused_network.py`)
    Inductor       the segment compiled by torch.compile, without recurrent layers
    fused loss     of a network for sequences: the product with the classes' weights and the
                   cross-entropy as one (`kernels/fused/linear_cross_entropy.py`)

`choose` times both passes of each on arrays of the run, in CUDA graphs; segments of equal layers
and shapes are timed once. A segment with recurrent layers is divided at them, so that what is
between them can be compiled. A segment of convolutions, ReLUs and batch normalizations that run by
kernels is not compiled: ResNets were slower by Inductor, and compiling takes a minute. On one
device neighbouring segments that Inductor computes are compiled as one, so that it fuses across
their borders; on several each is compiled by itself, so that gradients are synchronized while
others are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from cubemesh.batches import PADDING
from cubemesh.frameworks.pytorch.distributed.graph_partition import (
    Stage,
    parts_of,
    stage_function,
    stages_of,
)
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork, Values
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.lowerings import (
    Activation,
    LearnedScale,
    Product,
    SampleDropout,
)
from cubemesh.frameworks.pytorch.module import BuiltNetwork
from cubemesh.frameworks.pytorch.precision.float8_linear import Float8Linear
from cubemesh.frameworks.pytorch.precision.low_precision_weights import LowPrecisionWeights
from cubemesh.frameworks.pytorch.precision.master_weight_cast import no_destination
from cubemesh.kernels.cuda_events import step_ms
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv_relu import FusedConvRelu
from cubemesh.kernels.fused.linear_cross_entropy import linear_cross_entropy
from cubemesh.kernels.fused.space_to_depth_conv import SpaceToDepthConv
from cubemesh.kernels.triton.conv1x1_bn_stats import Conv1x1WithStats
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Linear

Implementation = Literal["operations", "kernels", "Inductor", "fused loss"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)
Loss = Callable[[Sequence[Tensor], Tensor], Tensor]
"""(the heads' values, labels) → loss."""
LOSS = "loss"
"""Name of the part that is only the last product and the loss."""
FEWEST_LOSS_CLASSES = 4096
"""With fewer the logits are small, and the fused loss gains nothing."""
WITHOUT_KERNELS = (Activation, LearnedScale, Product, SampleDropout, nn.Sigmoid)
"""Pointwise layers that Inductor fuses and the kernels of batch normalizations do not."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The implementation of a segment."""

    segment: str
    implementation: Implementation
    milliseconds: dict[Implementation, float]
    """Of both passes, for each that was tried."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A segment; of the last, without its fused loss."""

    stage: Stage
    steps: range
    """Of the fused network."""
    last: bool
    """Whether the loss follows."""
    reads: dict[str, int]
    """Value → how often the part reads it, of those that it does not compute."""
    results: dict[str, int]
    """Value → how often others read it, of those that it computes."""


class SegmentedLoss:
    """The loss of a built network as a function of its inputs and labels."""

    def __init__(
        self,
        built: BuiltNetwork,
        fused: FusedNetwork,
        loss: Loss,
        *,
        merge: bool,
        fused_loss: bool = True,
    ) -> None:
        """`merge`: neighbouring segments are compiled as one. `fused_loss`: whether the loss is
        what the backward pass starts from, as the fused loss needs, and not one of several that
        are added."""
        self._built, self.fused, self._loss, self._merge = built, fused, loss, merge
        self.copies = LowPrecisionWeights((), torch.float32)
        """Of weights that layers read in low precision."""
        self.loss_scale = 1.0
        """The gradient of the loss in the backward pass."""
        self.choices: tuple[Choice, ...] = ()
        """By segment; empty before `choose`."""
        self._shapes: list[torch.Size] = []
        self._plan: list[Callable[[Values, Tensor], Tensor | None]] = []
        network, heads = built.network, built.network.heads
        final = network.needed()[-1]
        self._linear: Node | None = None
        """The product whose cross-entropy can be computed with it."""
        if (
            fused_loss
            and isinstance(final.layer, Linear)
            and final.layer.features >= FEWEST_LOSS_CLASSES
            and [head.value for head in heads] == [final.name]
            and heads[0].weight == 1
            and not isinstance(built.layers[final.name], Float8Linear)
        ):
            self._linear = final

    def __call__(self, *placed: Tensor) -> Tensor:
        """Inputs and labels → the loss, in arrays of the shapes of `choose` by the choices."""
        *inputs, labels = placed
        if [array.shape for array in placed] != self._shapes:
            return self._loss(self.fused(*inputs), labels)
        values, loss = self.fused.begin(inputs), None
        for run in self._plan:
            loss = run(values, labels)
        assert loss is not None
        return loss

    def choose(self, placed: Placed, compiler: Callable[..., Any] | None, retry: Retry) -> None:
        """Time the implementations of each segment for arrays like `placed`, and use the fastest;
        under the autocast of the step, after `FusedNetwork.tune`. `compiler` compiles a function;
        None where that is impossible. `retry` calls a function that compiles."""
        parts, labels = self._parts(), placed[-1]
        known: dict[object, dict[Implementation, float]] = {}
        choices = []
        place_of, self.fused.place_of = self.fused.place_of, no_destination
        values = self.fused.begin(placed[:-1])
        for part in parts:
            given = {name: values[name] for name in part.reads}
            key = _signature(part, given)
            if key not in known:
                known[key] = self._times(part, given, labels, compiler, retry)
            times = known[key]
            best = min(times, key=times.__getitem__)
            choices.append(
                Choice(segment=part.stage.name, implementation=best, milliseconds=dict(times))
            )
            if not part.last:
                with torch.no_grad():
                    self.fused.run(part.steps, values)
        self.fused.place_of = place_of
        torch.clear_autocast_cache()
        self.choices = tuple(choices)
        self._build_plan(parts, compiler)
        self._shapes = [array.shape for array in placed]

    @property
    def loss_weight(self) -> Tensor | None:
        """The weight of the product that may be computed with the loss."""
        if self._linear is None:
            return None
        weight = self._built.layers[self._linear.name].weight
        assert isinstance(weight, Tensor)
        return weight

    def close(self) -> None:
        """Drop the compiled code and the network."""
        self._plan.clear()
        del self.fused, self._built

    def _parts(self) -> list[Part]:
        """The segments, whose steps are neighbours; the whole network where fusions cross them."""
        network, steps = self._built.network, self.fused.steps
        parts = [part for found in parts_of(network) for part in self._around_recurrences(*found)]
        if self._linear is not None:
            name, nodes = parts[-1]
            split = [(name, nodes[:-1])] if nodes[:-1] else []
            parts[-1:] = [*split, (LOSS, (self._linear,))]
        number_of = {node.name: i for i, (_, nodes) in enumerate(parts) for node in nodes}
        of_step = []
        for step in steps:
            names = [step.name] if isinstance(step, Node) else list(step.nodes)
            of_step.append({number_of[name] for name in names})
        numbers = [max(found) for found in of_step]
        if any(len(found) > 1 for found in of_step) or numbers != sorted(numbers):
            parts, numbers = [(network.name, network.needed())], [0] * len(steps)
            self._linear = None
        stages = stages_of(network, parts)
        found = []
        for i, (stage, (name, _)) in enumerate(zip(stages, parts, strict=True)):
            first = numbers.index(i)
            own = range(first, first + numbers.count(i))
            found.append(self._part(replace(stage, name=name), own, last=stage is stages[-1]))
        return found

    def _around_recurrences(
        self, name: str, nodes: tuple[Node, ...]
    ) -> list[tuple[str, tuple[Node, ...]]]:
        """A segment in parts: each recurrent layer, which is cuDNN's, and what is between them,
        which can be compiled."""
        layers, found = self._built.layers, list[tuple[str, tuple[Node, ...]]]()
        between = 0
        for recurrent, group in groupby(nodes, lambda n: isinstance(layers[n.name], nn.RNNBase)):
            own = tuple(group)
            if recurrent:
                found += [(node.name, (node,)) for node in own]
            else:
                between += 1
                found.append((name if between == 1 else f"{name} ({between})", own))
        return found

    def _part(self, stage: Stage, numbers: range, *, last: bool) -> Part:
        steps = [self.fused.steps[number] for number in numbers]
        made = {step.name if isinstance(step, Node) else step.last.name for step in steps}
        read = [value for step in steps for value in step.inputs]
        if last:
            read += self.fused.heads
        own = {name: self.fused.reads[name] - read.count(name) for name in made}
        return Part(
            stage=stage,
            steps=numbers,
            last=last,
            reads={name: read.count(name) for name in stage.inputs},
            results={name: count for name, count in own.items() if count},
        )

    def _times(
        self,
        part: Part,
        given: dict[str, list[Tensor]],
        labels: Tensor,
        compiler: Callable[..., Any] | None,
        retry: Retry,
    ) -> dict[Implementation, float]:
        """Milliseconds of both passes by each implementation that supports the part."""
        arrays = {name: copies[-1].detach() for name, copies in given.items()}
        inputs = {i.name for i in self._built.network.inputs}
        for name, array in arrays.items():
            array.requires_grad_(array.is_floating_point() and name not in inputs)
        owned = {p for node in part.stage.nodes for p in node.parameters.values()}
        wanted: list[Tensor] = []
        for name, weight in self._built.parameters.items():
            if name in owned:
                copy = self.copies.copy_of(weight)
                wanted.append(weight if copy is None else copy)
        wanted += [array for array in arrays.values() if array.requires_grad]
        if not wanted:
            return {self._own(part): 0.0}

        def ready() -> Values:
            torch.clear_autocast_cache()
            return {name: [arrays[name]] * count for name, count in part.reads.items()}

        def results(run: Run) -> list[Tensor]:
            values = ready()
            loss = run(values, labels)
            return [values[name][0] for name in part.results] if loss is None else [loss]

        runs: dict[Implementation, Run] = {self._own(part): self._by_steps(part)}
        if part.last and self._linear is not None and find_spec("triton") is not None:
            runs["fused loss"] = self._by_fused_loss()
        if compiler is not None and self._compiles(part):
            runs["Inductor"] = self._compiled([part], compiler)
        found: dict[Implementation, float] = {}
        for name, run in runs.items():
            try:
                attempt = partial(step_ms, partial(results, run), wanted, self.fused.join)
                found[name] = retry(attempt) if name == "Inductor" else attempt()
            except RuntimeError:  # memory, or a compiler that does not support it
                torch.cuda.empty_cache()
        return found or {self._own(part): 0.0}

    def _own(self, part: Part) -> Implementation:
        """The name of the part as the fused network runs it."""
        return "kernels" if any(map(_has_kernels, self._operations(part))) else "operations"

    def _operations(self, part: Part) -> list[nn.Module]:
        return [self.fused.operations[number] for number in part.steps]

    def _compiles(self, part: Part) -> bool:
        """Whether Inductor is tried."""
        operations = self._operations(part)
        if any(isinstance(op, nn.RNNBase) for op in operations):
            return False
        by_kernels = any(isinstance(op, FusedBatchNorm) and op.kernels for op in operations)
        return not by_kernels or any(isinstance(op, WITHOUT_KERNELS) for op in operations)

    def _build_plan(self, parts: Sequence[Part], compiler: Callable[..., Any] | None) -> None:
        self._plan, group = [], list[Part]()
        for part, choice in zip(parts, self.choices, strict=True):
            if group and (choice.implementation != "Inductor" or not self._merge):
                self._plan.append(self._compiled(group, compiler))
                group = []
            if choice.implementation == "Inductor":
                group.append(part)
            elif choice.implementation == "fused loss":
                self._plan.append(self._by_fused_loss())
            else:
                self._plan.append(self._by_steps(part))
        if group:
            self._plan.append(self._compiled(group, compiler))

    def _by_steps(self, part: Part) -> Run:
        def run(values: Values, labels: Tensor) -> Tensor | None:
            self.fused.run(part.steps, values)
            if not part.last:
                return None
            return self._loss([values[name].pop() for name in self.fused.heads], labels)

        return run

    def _by_fused_loss(self) -> Run:
        weight = self.loss_weight
        assert self._linear is not None
        assert weight is not None
        bias = getattr(self._built.layers[self._linear.name], "bias", None)
        (read,) = self._linear.inputs

        def run(values: Values, labels: Tensor) -> Tensor:
            x = values[read].pop().flatten(0, -2)
            return linear_cross_entropy(x, weight, labels.flatten(), PADDING, self.loss_scale, bias)

        return run

    def _compiled(self, parts: Sequence[Part], compiler: Callable[..., Any] | None) -> Run:
        """Neighbouring parts as one compiled function."""
        assert compiler is not None
        made = {node.name for part in parts for node in part.stage.nodes}
        nodes = tuple(node for part in parts for node in part.stage.nodes)
        last = parts[-1].last
        inputs = dict.fromkeys(v for part in parts for v in part.stage.inputs if v not in made)
        reads = {name: sum(part.reads.get(name, 0) for part in parts) for name in inputs}
        within = [value for part in parts for value, n in part.reads.items() for _ in range(n)]
        results = {
            name: count - within.count(name)
            for part in parts
            for name, count in part.results.items()
            if count > within.count(name)
        }
        heads = tuple(dict.fromkeys(self.fused.heads))
        stage = Stage(
            name="_".join(part.stage.name for part in (parts[0], parts[-1])),
            nodes=nodes,
            inputs=tuple(inputs),
            results=heads if last else tuple(results),
        )
        loss = self._loss if last else None
        layers = {node.name: self.copies.layer(self._built.layers[node.name]) for node in nodes}
        function = compiler(stage_function(self._built, stage, layers, loss))

        def run(values: Values, labels: Tensor) -> Tensor | None:
            given = []
            for name, count in reads.items():
                given.append(values[name][-1])
                del values[name][-count:]
            if last:
                loss: Tensor = function(*given, labels)
                return loss
            found = function(*given)
            del given
            for name, result in zip(results, found, strict=True):
                values[name] = [result] * results[name]
            return None

        return run


Run = Callable[[Values, Tensor], "Tensor | None"]
"""Takes what it reads from the values and adds what it computes; the last returns the loss."""
Retry = Callable[[Callable[[], Any]], Any]


def _has_kernels(op: nn.Module) -> bool:
    """Whether an operation runs by kernels of its own."""
    if isinstance(op, FusedConvRelu):
        return op.method != "operations" or op.folded is not None
    if isinstance(op, FusedBatchNorm):
        return op.kernels is not None
    replaced = isinstance(op, (SpaceToDepthConv, Conv1x1WithStats))
    return replaced or bool(getattr(op, "kernels", False))


def _signature(part: Part, given: dict[str, list[Tensor]]) -> object:
    """Equal for parts of equal layers, wired alike, that receive arrays alike."""
    names = {name: i for i, name in enumerate((*given, *(n.name for n in part.stage.nodes)))}
    layers = [(repr(n.layer), tuple(names[v] for v in n.inputs)) for n in part.stage.nodes]
    arrays = [(c[-1].shape, c[-1].stride(), c[-1].dtype) for c in given.values()]
    return (part.last, repr(layers), repr(arrays))
