"""Source of an own network: the module that the code of a user builds, in a worker only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cubemesh import user_code
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import UserCodeError, UserObject, attempt, digest


def load(named: UserObject) -> nn.Module:
    """The module, as its code builds it with seed 0. UserCodeError where there is none."""
    found = user_code.load(named, is_out_of_memory)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise UserCodeError(
                f"{named.short} is of type {type(found).__name__}. Name a torch.nn.Module, or a "
                "class or function without arguments that returns one."
            )
        torch.manual_seed(0)
        found = attempt(named, "building it", found, is_out_of_memory)
    if not isinstance(found, nn.Module):
        raise UserCodeError(
            f"{named.short} returned an object of type {type(found).__name__}, and a "
            "torch.nn.Module is needed."
        )
    return found


def load_described(own: OwnNetwork) -> nn.Module:
    """The module of a description. UserCodeError where it cannot be built, or its files are no
    longer those that were described."""
    if own.fault:
        raise UserCodeError(own.fault)
    named = UserObject(name=own.source, folder=own.folder)
    module = load(named)
    if digest(named) != own.digest:
        raise UserCodeError(
            f"{own.name}: its source changed after the command began. Run the command again."
        )
    return module


class Scores(nn.Module):
    """A module of the user, whose result is the tensor of its scores."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        """As the module: (batch, …) → (batch, classes) or (batch, positions, classes)."""
        return scores_of(self.module(*inputs))


def scores_of(result: Any) -> Tensor:
    """The scores in a module's result: the tensor itself, `logits` of an object or a dict, or the
    first of several. TypeError where there are none."""
    if isinstance(result, Tensor):
        return result
    logits = result.get("logits") if isinstance(result, dict) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0]
    raise TypeError(f"it returned {type(result).__name__} instead of a tensor of scores")
