"""Partition of a network's graph into stages that are compiled separately.

A stage is a segment of the graph, or all of it, as one function, from the values of earlier
segments that it reads to its values that later ones read. The last stage includes the loss. One
more function, not compiled, calls the stages in order:

    (dropout1,) = run_stage1_block1(image); del image
    (dropout2,) = run_stage2_block2(dropout1); del dropout1
    return run_stage3_classifier(dropout2, labels)

So a step runs one compiled graph per stage forward and one backward, the last stage first: the
gradients of a stage are complete and can be synchronized while earlier stages run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.module import BuiltNetwork, define, identifiers, write_forward
from cubemesh.networks.graph import Network, Node
from cubemesh.schema.spec import CompileBy

Loss = Callable[[Sequence[Tensor], Tensor], Tensor]
"""(the heads' values, labels) → loss."""
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A segment, the values that it reads and its values that others read."""

    name: str
    """Its identifier: stage, number, segment."""
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    """Of the last stage: the values of all heads."""


def partition(network: Network, compile_by: CompileBy) -> tuple[Stage, ...]:
    """The stages of `network`, in execution order: one, or one per segment."""
    if compile_by == "network":
        return stages_of(network, [("", network.needed())])
    return stages_of(network, parts_of(network))


def parts_of(network: Network) -> list[tuple[str, tuple[Node, ...]]]:
    """Name and nodes of each segment that some head needs."""
    needed = network.needed()
    parts = [
        (segment.name, tuple(node for node in needed if node.name in segment.nodes))
        for segment in network.segments
    ]
    return [(name, nodes) for name, nodes in parts if nodes]


def parts_around(
    network: Network, separate: Callable[[Node], bool]
) -> list[tuple[str, tuple[Node, ...]]]:
    """The nodes that some head needs, in execution order: each for which `separate` holds by
    itself, and those between two of them together."""
    parts: list[tuple[str, tuple[Node, ...]]] = []
    between: list[Node] = []
    for node in network.needed():
        if not separate(node):
            between.append(node)
            continue
        if between:
            parts.append((between[0].segment, tuple(between)))
            between = []
        parts.append((node.name, (node,)))
    if between:
        parts.append((between[0].segment, tuple(between)))
    return parts


def stages_of(network: Network, parts: Sequence[tuple[str, tuple[Node, ...]]]) -> tuple[Stage, ...]:
    """A stage for each of `parts`: names and nodes, which are all that the heads need."""
    heads = tuple(dict.fromkeys(head.value for head in network.heads))
    stages: list[Stage] = []
    read_later = set(heads)
    for number, (name, nodes) in reversed(list(enumerate(parts, start=1))):
        last = not stages
        own = {node.name for node in nodes}
        read = [value for node in nodes for value in node.inputs] + (list(heads) if last else [])
        inputs = tuple(value for value in dict.fromkeys(read) if value not in own)
        results = heads if last else tuple(n.name for n in nodes if n.name in read_later)
        identifier = re.sub(r"\W", "_", f"stage{number}_{name}").rstrip("_")
        stages.append(Stage(name=identifier, nodes=nodes, inputs=inputs, results=results))
        read_later.update(inputs)
    return tuple(reversed(stages))


@dataclass(frozen=True, kw_only=True)
class StagedLoss:
    """A network's loss as a function of inputs and labels, by stages."""

    code: str
    """Python source of the function that calls the stages."""
    stages: tuple[Stage, ...]
    run: Callable[..., Tensor]
    """(each input, labels) → loss."""


def build_stages(
    built: BuiltNetwork, loss: Loss, compiled: Compiler, compile_by: CompileBy = "segment"
) -> StagedLoss:
    """The stages of a built network, each compiled by `compiled`."""
    network, stages = built.network, partition(built.network, compile_by)
    names = identifiers(network)
    called = {
        f"run_{stage.name}": compiled(
            stage_function(built, stage, built.layers, loss if stage is stages[-1] else None)
        )
        for stage in stages
    }
    code = write_calls(names, stages, [i.name for i in network.inputs], ["run_labels"])
    run = define(code, f"{network.name}, by stages", called)["forward"]
    return StagedLoss(code=code, stages=stages, run=run)


def stage_function(
    built: BuiltNetwork, stage: Stage, layers: Mapping[str, nn.Module], loss: Loss | None
) -> Callable[..., Any]:
    """A stage as a Python function from its inputs to its results or, with a `loss`, from inputs
    and labels to the loss; `layers` by node."""
    network, names = built.network, identifiers(built.network)
    code = write_forward(names, stage.inputs, stage.nodes, stage.results, built.layer_types)
    if loss is not None:
        code += _write_loss(names, stage, network)
    scope: dict[str, Any] = {f"run_{names[n.name]}": layers[n.name] for n in stage.nodes}
    scope |= {"loss_of": loss, "torch": torch}
    defined = define(code, f"{network.name}, {stage.name}", scope)
    function: Callable[..., Any] = defined["forward" if loss is None else "forward_to_loss"]
    return function


def _write_loss(names: Mapping[str, str], stage: Stage, network: Network) -> str:
    """The last stage followed by the loss. The name of the labels is reserved."""
    inputs = ", ".join(names[value] for value in stage.inputs)
    heads = ", ".join(str(stage.results.index(head.value)) for head in network.heads)
    return (
        f"\ndef forward_to_loss({inputs}, run_labels):\n"
        f"    values = forward({inputs})\n"
        f"    return loss_of([values[i] for i in ({heads},)], run_labels)\n"
    )


def write_calls(
    names: Mapping[str, str],
    stages: Sequence[Stage],
    inputs: Sequence[str],
    labels: Sequence[str] = (),
) -> str:
    """A function `forward` from the values `inputs`, and what the last stage takes besides, to the
    results of the last stage; it calls a stage as `run_` and its name."""
    last_reader = {value: stage.name for stage in stages for value in stage.inputs}
    lines = [f"def forward({', '.join([*(names[i] for i in inputs), *labels])}):"]
    for stage in stages[:-1]:
        read = ", ".join(names[value] for value in stage.inputs)
        made = ", ".join(names[value] for value in stage.results)
        done = [names[value] for value in stage.inputs if last_reader[value] == stage.name]
        line = f"    ({made},) = run_{stage.name}({read})"
        lines.append(f"{line}; del {', '.join(done)}" if done else line)
    read = ", ".join([*(names[value] for value in stages[-1].inputs), *labels])
    lines.append(f"    return run_{stages[-1].name}({read})")
    return "\n".join(lines) + "\n"
