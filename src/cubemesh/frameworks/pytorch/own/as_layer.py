"""A module of the user as one layer: its arrays replaced by the program's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cubemesh.frameworks.pytorch.own.source import Scores, load_described
from cubemesh.networks.graph import Node
from cubemesh.networks.opaque import Opaque


def opaque_module(
    node: Node,
    layer: Opaque,
    arrays: Mapping[str, Tensor],
    *,
    device: str,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> Scores:
    """The module of an opaque node. Its trained and updated arrays are those of `arrays`; what else
    it has, such as frozen weights and tables, has the values that its code gave it."""
    assert layer.own is not None, "a network made of a description"
    module = load_described(layer.own)
    new = {role: arrays[name] for role, name in {**node.parameters, **node.state}.items()}
    for role, (_, _, array) in _places(module):
        if role in new and is_lazy(array):  # of a lazy module: its first batch would shape it
            array.materialize(tuple(new[role].shape))
    module.to(device=device, dtype=dtype)
    module.to(memory_format=memory_format)  # type: ignore[call-overload]
    places = dict(_places(module))
    by_old = {id(places[role][2]): array for role, array in new.items()}
    for owner, attribute, old in _all_places(module):
        if id(old) in by_old:
            table: dict[str, Any] = (
                owner._parameters if attribute in owner._parameters else owner._buffers
            )
            table[attribute] = by_old[id(old)]
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()
    return Scores(module)


def _places(module: nn.Module) -> list[tuple[str, tuple[nn.Module, str, Tensor]]]:
    """(name in the module, (owner, attribute, array)) of each parameter and buffer."""
    return [
        (f"{prefix}.{name}" if prefix else name, (owner, name, array))
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for name, array in [*owner._parameters.items(), *owner._buffers.items()]
        if array is not None
    ]


def _all_places(module: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Every place of an array: a shared one has several."""
    return [place for _, place in _places(module)]
