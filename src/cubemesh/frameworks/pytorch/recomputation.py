"""Activation checkpointing: segments whose forward pass is computed again in the backward pass.

    forward    image ─ segment 1 ─▶ a ─ segment 2 ─▶ b ─ segment 3 ─▶ loss     image, a and all of
                                                                               segment 3 are saved
    backward   gradients of 3; segment 2 again from a, its gradients; segment 1 again from image

Each recomputed segment is a function of the values that it reads (`graph_partition.py`), called
through torch.utils.checkpoint, which saves those values only (Chen et al. 2016, "Training Deep Nets
with Sublinear Memory Cost"). The generators of random numbers are set back, so dropout draws the
same mask, and batch normalization leaves its running statistics alone the second time: losses,
gradients and statistics have the bits of a step without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from cubemesh.frameworks.pytorch.distributed.graph_partition import (
    Stage,
    parts_of,
    stage_function,
    stages_of,
    write_calls,
)
from cubemesh.frameworks.pytorch.module import BuiltNetwork, define, identifiers

Forward = Callable[..., tuple[Tensor, ...]]
"""(each input) → the value of each head."""


def recomputing_forward(built: BuiltNetwork, recomputed: Collection[str]) -> Forward:
    """The forward pass of a built network, no layer of which overwrites its input, that saves of
    the segments `recomputed` only what they read."""
    network = built.network
    parts = parts_of(network)
    *early, last = stages_of(network, parts)
    heads = tuple(head.value for head in network.heads)
    stages = [*early, replace(last, results=heads)]
    called = {}
    for stage, (segment, _) in zip(stages, parts, strict=True):
        run = stage_function(built, stage, built.layers, None)
        called[f"run_{stage.name}"] = (
            recomputed_stage(run, built, stage) if segment in recomputed else run
        )
    code = write_calls(identifiers(network), stages, [i.name for i in network.inputs])
    forward: Forward = define(code, f"{network.name}, by segments", called)["forward"]
    return forward


def recomputed_stage(
    run: Callable[..., Any], built: BuiltNetwork, stage: Stage
) -> Callable[..., Any]:
    """`run`, the function of a stage, computed again in the backward pass."""
    norms = [
        module
        for node in stage.nodes
        for module in built.layers[node.name].modules()
        if isinstance(module, _BatchNorm)
    ]
    return partial(
        checkpoint, run, use_reentrant=False, context_fn=partial(_contexts, norms), debug=False
    )


def _contexts(
    norms: Sequence[nn.Module],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Those of the first and of the second forward pass of a segment."""
    return nullcontext(), _copied_statistics(norms)


@contextmanager
def _copied_statistics(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Within it batch normalization updates copies of its running statistics."""
    own = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, own, strict=True):
        norm._buffers.update({n: None if b is None else b.clone() for n, b in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, own, strict=True):
            norm._buffers.update(buffers)
