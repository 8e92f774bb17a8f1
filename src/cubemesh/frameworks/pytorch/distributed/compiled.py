"""Compiled steps of ranks that divide state, layers or sequences (TorchTitan's way).

What is between two collectives is compiled, and collectives run between the compiled functions:

    sharded state       each unit and the loss; FSDP's hooks gather and free around them
    tensor parallel     what is between two redistributions, on DTensors; the loss is eager
    context parallel    what is between two gathers of keys and values; the last with the loss

So collectives are timed and profiled as those of the eager program are, and every rank compiles the
same functions. Evaluation is eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.distributed.tensor.parallel import loss_parallel

from cubemesh.batches import Array
from cubemesh.frameworks.contract.divided_network import GatheredKeys, Redistribution
from cubemesh.frameworks.contract.gradient_sync import (
    ContextParallelSync,
    ShardedSync,
    TensorParallelSync,
)
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch.compiled import (
    CompiledProgram,
    CompilesStep,
    compiler,
    prepare_to_compile,
)
from cubemesh.frameworks.pytorch.distributed.context_parallel import (
    ContextParallelProgram,
    summed_loss,
)
from cubemesh.frameworks.pytorch.distributed.fully_sharded import (
    FullyShardedProgram,
    ShardedOptimizerProgram,
)
from cubemesh.frameworks.pytorch.distributed.graph_partition import (
    parts_around,
    stage_function,
    stages_of,
    write_calls,
)
from cubemesh.frameworks.pytorch.distributed.tensor_parallel import TensorParallelProgram
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.module import BuiltNetwork, define, identifiers
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Embedding, InputFeedingDecoder, Recurrence


class CompiledShardedOptimizerProgram(ShardedOptimizerProgram, CompiledProgram):
    """A compiled replica with a part of the optimizer's state."""

    def __init__(self, request: BuildRequest, sync: ShardedSync) -> None:
        super().__init__(request, sync)


class CompiledFullyShardedProgram(FullyShardedProgram, CompilesStep):
    """A rank's part of weights, gradients and optimizer state; each unit is compiled."""

    def __init__(self, request: BuildRequest, sync: ShardedSync) -> None:
        prepare_to_compile(request)
        for node in request.network.nodes:
            if isinstance(node.layer, Recurrence | InputFeedingDecoder):
                raise Unsupported(
                    f"pytorch-compiled, sync={request.sync.name}: {node.name} of "
                    f"{request.network.name} is recurrent, and PyTorch's recurrent layers hold "
                    "their weights in a list that FSDP does not divide when it is compiled. Set "
                    "framework=pytorch, or sync=all-reduce."
                )
        self._compile = compiler(request.network)
        self._evaluates = False
        super().__init__(request, sync)

    def _compiled(self, run: Callable[..., Any]) -> Callable[..., Any]:
        compiled = self._compile(run)

        def call(*inputs: Any) -> Any:
            return (run if self._evaluates else compiled)(*inputs)

        return call

    def evaluate(self, placed: Placed) -> Array:
        """See `FullyShardedProgram`; not compiled, for the last batch is shorter."""
        self._evaluates = True
        try:
            return super().evaluate(placed)
        finally:
            self._evaluates = False


class CompiledTensorParallelProgram(TensorParallelProgram, CompilesStep):
    """The part of a rank; what is between two redistributions is compiled."""

    def __init__(self, request: BuildRequest, sync: TensorParallelSync) -> None:
        prepare_to_compile(request)
        super().__init__(request, sync)
        self._run = compiled_between(self._built, _is_eager)

    def _run_once(self, placed: Placed) -> None:
        with loss_parallel() if self._optimizer else nullcontext():  # `forward` enters it itself
            super()._run_once(placed)


class CompiledContextParallelProgram(ContextParallelProgram, CompilesStep):
    """A rank's positions; what is between two gathers of keys and values is compiled."""

    def __init__(self, request: BuildRequest, sync: ContextParallelSync) -> None:
        prepare_to_compile(request)
        super().__init__(request, sync)
        self._to_loss = compiled_between(self._built, _is_gather, partial(summed_loss, self._heads))

    def _summed_loss(self, own: Sequence[Tensor]) -> Tensor:
        with self._autocast:
            loss: Tensor = self._to_loss(*own)
            return loss

    def close(self) -> None:
        """Drop every array and the compiled code."""
        del self._to_loss
        super().close()


def compiled_between(
    built: BuiltNetwork,
    separate: Callable[[Node], bool],
    loss: Callable[[Sequence[Tensor], Tensor], Tensor] | None = None,
) -> Callable[..., Any]:
    """A function from the inputs of a network to the values of its heads, or from inputs and labels
    to the loss, in which what is between two nodes for which `separate` holds is compiled."""
    network, compiled = built.network, compiler(built.network)
    *early, last = stages_of(network, parts_around(network, separate))
    stages = [*early, replace(last, results=tuple(head.value for head in network.heads))]
    called: dict[str, Callable[..., Any]] = {}
    for stage in stages:
        run = stage_function(built, stage, built.layers, loss if stage is stages[-1] else None)
        eager = all(separate(node) for node in stage.nodes)
        called[f"run_{stage.name}"] = run if eager else compiled(run)
    labels = [] if loss is None else ["run_labels"]
    code = write_calls(identifiers(network), stages, [i.name for i in network.inputs], labels)
    function: Callable[..., Any] = define(code, f"{network.name}, by parts", called)["forward"]
    return function


def _is_eager(node: Node) -> bool:
    """A collective, or an embedding divided by its vocabulary, whose mask DTensor cannot trace."""
    return isinstance(node.layer, Redistribution | Embedding)


def _is_gather(node: Node) -> bool:
    return isinstance(node.layer, GatheredKeys)
