"""Description of a module of the user: scores, arrays, FLOPs and saved values, or its graph.

The module is run once in evaluation mode, and once in training mode with its backward pass, on two
random samples. FLOPs are those that PyTorch dispatched (torch.utils.flop_counter). Then it is
traced (tracing.py); where that fails, it stays one opaque layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cubemesh.batches import Array
from cubemesh.frameworks.contract.own_module import (
    SAMPLES,
    DescriptionRequest,
    check_scores,
    check_trained,
    faulty,
    moments,
    opaque_description,
)
from cubemesh.frameworks.pytorch.own import hugging_face
from cubemesh.frameworks.pytorch.own.source import load, scores_of
from cubemesh.frameworks.pytorch.own.tracing import Traced, Untraceable, trace
from cubemesh.networks.graph_text import to_text
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import UserCodeError, attempt, digest


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """What one training step of the module showed."""

    scores: tuple[int, ...]
    forward_flops: int
    backward_flops: int
    saved_values: int
    trained: dict[str, Tensor]
    """Initial values of the parameters that got a gradient."""
    updated: dict[str, Tensor]
    """Initial values of the buffers that the forward pass wrote."""


def describe(request: DescriptionRequest) -> OwnNetwork:
    """The description of a module; one with a fault is described without its arrays."""
    return describe_and_compare(request)[0]


def describe_and_compare(request: DescriptionRequest) -> tuple[OwnNetwork, float | None]:
    """The description, and the largest relative difference of the graph's outputs from the
    module's; None where it has no graph."""
    own, traced = describe_with_arrays(request)
    return own, None if traced is None else traced.difference


def describe_with_arrays(request: DescriptionRequest) -> tuple[OwnNetwork, Traced | None]:
    """The description, and the graph with the module's own arrays; None where it has no graph."""
    try:
        if request.named.form == "configuration":
            request = hugging_face.with_input(request)
        return describe_module(request, load(request.named))
    except UserCodeError as error:
        return faulty(request, str(error)), None


def describe_module(
    request: DescriptionRequest, module: nn.Module
) -> tuple[OwnNetwork, Traced | None]:
    """As `describe_with_arrays`, of a module that is built. UserCodeError where it cannot be
    run."""
    given = torch.from_numpy(request.samples())
    counted = _count(module, given, request)
    try:
        traced = trace(request.named.short, module, given, request.input_name, request.vocabulary)
    except Untraceable as reason:
        layer = Opaque(
            output=counted.scores,
            trained=tuple((n, tuple(a.shape)) for n, a in counted.trained.items()),
            updated=tuple((n, tuple(a.shape)) for n, a in counted.updated.items()),
            forward_flops=counted.forward_flops,
            backward_flops=counted.backward_flops,
            saved_values=counted.saved_values,
        )
        arrays = {n: _values(a) for n, a in {**counted.trained, **counted.updated}.items()}
        return opaque_description(request, "pytorch", layer, arrays, str(reason)), None
    return traced_description(request, traced), traced


def traced_description(request: DescriptionRequest, traced: Traced) -> OwnNetwork:
    """The description of a module that is a graph of layers."""
    named = request.named
    arrays = {name: moments(_values(array)) for name, array in traced.arrays.items()}
    graph = to_text(traced.network, arrays)
    return OwnNetwork(source=named.name, folder=named.folder, digest=digest(named), graph=graph)


def _count(module: nn.Module, given: Tensor, request: DescriptionRequest) -> _Counted:
    named, what = request.named, request.shown_input
    running = f"running it on {what}"
    module.eval()
    with torch.no_grad():
        scores = attempt(named, running, lambda: scores_of(module(given)))
    check_scores(request, tuple(scores.shape), floating=scores.is_floating_point())
    module.train()
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
    before = {n: a.detach().clone() for n, a in {**parameters, **buffers}.items()}
    saved = _SavedValues([given, *parameters.values(), *buffers.values()])

    def step() -> tuple[int, int]:
        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda kept: kept):
                values = scores_of(module(given))
            forward = counter.get_total_flops()
            loss = F.cross_entropy(
                values.flatten(0, -2).float(),
                torch.zeros(math.prod(values.shape[:-1]), dtype=torch.long),
            )
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            return forward, counter.get_total_flops() - forward

    forward, backward = attempt(named, f"training it on {what}", step)
    trained = {n: before[n] for n, p in parameters.items() if p.grad is not None}
    check_trained(request, trained)
    updated = {n: before[n] for n, b in buffers.items() if not torch.equal(b, before[n])}
    with torch.no_grad():
        for n, buffer in buffers.items():
            buffer.copy_(before[n])
    module.zero_grad(set_to_none=True)
    return _Counted(
        scores=tuple(scores.shape[1:]),
        forward_flops=forward // SAMPLES,
        backward_flops=backward // SAMPLES,
        saved_values=saved.bytes // 4 // SAMPLES,
        trained=trained,
        updated=updated,
    )


class _SavedValues:
    """Bytes that a forward pass saves, each storage once, without arrays that exist anyway."""

    def __init__(self, existing: Sequence[Tensor]) -> None:
        self._seen = {a.untyped_storage().data_ptr() for a in existing}
        self._alive: list[Tensor] = []
        self.bytes = 0

    def pack(self, array: Tensor) -> Tensor:
        """Hook of autograd: `array` is saved."""
        storage = array.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._alive.append(array)  # its address stays its own
            self.bytes += storage.nbytes()
        return array


def _values(array: Tensor) -> Array:
    found: Array = array.detach().double().numpy()
    return found
