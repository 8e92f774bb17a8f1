"""Source of an own network: the module that the code of a user builds, in a worker only."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cubemesh.frameworks.contract.own_module import (
    check_unchanged,
    make,
    of_framework,
    scores_in,
)
from cubemesh.frameworks.pytorch.own import hugging_face
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import UserObject


def load(named: UserObject) -> nn.Module:
    """The module, as its code builds it with seed 0. UserCodeError where there is none."""
    if named.form == "configuration":
        return hugging_face.build(named)
    found = of_framework(named, make(named, is_out_of_memory), "pytorch")
    assert isinstance(found, nn.Module)
    return found


def load_described(own: OwnNetwork) -> nn.Module:
    """The module of a description. UserCodeError where it cannot be built, or its files are no
    longer those that were described."""
    return load(check_unchanged(own))


class Scores(nn.Module):
    """A module of the user, whose result is the tensor of its scores."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        """As the module: (batch, …) → (batch, classes) or (batch, positions, classes)."""
        return scores_of(self.module(*inputs))


def scores_of(result: Any) -> Tensor:
    """See `scores_in`."""
    scores: Tensor = scores_in(result, Tensor, "a tensor")
    return scores
