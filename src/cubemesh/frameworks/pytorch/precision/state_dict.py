"""State of a PyTorch program for checkpoints: optimizer state and random generators.

With the weights they determine the next steps exactly: the optimizer's arrays per parameter, and
the generators of dropout on host and device. Arrays are copied bit by bit, never converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from cubemesh.batches import Array
from cubemesh.frameworks.contract.snapshot import (
    GENERATOR,
    OPTIMIZER,
    generator_states,
    parameter_and_slot,
)

_HOST, _DEVICE = "cpu", "cuda"
"""Names of the generators."""


def _unchanged(name: str, value: Tensor) -> Tensor:
    return value


def snapshot_arrays(
    optimizer: optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    device: str,
    whole: Callable[[str, Tensor], Tensor] = _unchanged,
) -> dict[str, Array]:
    """Copies of the optimizer's arrays, by parameter and name, and of the generators' states.
    `whole` maps a parameter's name and an array of its shape to the array to store."""
    arrays = {
        f"{OPTIMIZER}{name}.{key}": to_host(
            whole(name, value) if value.shape == parameter.shape else value
        )
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    arrays[GENERATOR + _HOST] = to_host(torch.get_rng_state())
    if torch.device(device).type == "cuda":
        arrays[GENERATOR + _DEVICE] = to_host(torch.cuda.get_rng_state(device))
    return arrays


def restore_arrays(
    arrays: Mapping[str, Array],
    optimizer: optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    device: str,
    part: Callable[[str, Tensor], Tensor] = _unchanged,
) -> None:
    """Restore what `snapshot_arrays` returned; `part` is the inverse of its `whole`. UsageError for
    another optimizer or device."""
    on_gpu = torch.device(device).type == "cuda"
    states = generator_states(arrays, (_HOST, _DEVICE) if on_gpu else (_HOST,), device)
    torch.set_rng_state(torch.from_numpy(states[_HOST]))
    if on_gpu:
        torch.cuda.set_rng_state(torch.from_numpy(states[_DEVICE]), device)
    for name, array in arrays.items():
        if name.startswith(OPTIMIZER):
            owner, key = parameter_and_slot(name, parameters)
            _set(optimizer, parameters[owner], key, part(owner, torch.from_numpy(array)))


def _set(optimizer: optim.Optimizer, parameter: nn.Parameter, key: str, value: Tensor) -> None:
    """Set an array in its parameter's layout, or a step count on the optimizer's device."""
    state = optimizer.state[parameter]
    if value.shape == parameter.shape:
        state[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
        state[key].copy_(value)
        return
    (group,) = optimizer.param_groups
    on_device = group.get("fused") or group.get("capturable")
    state[key] = value.to(parameter.device if on_device else "cpu", copy=True)


def to_host(value: Tensor) -> Array:
    """A copy on the host in its own type, in C order."""
    array: Array = np.array(value.detach().cpu().numpy(), order="C")
    return array


def fingerprint(parameters: Mapping[str, nn.Parameter]) -> int:
    """Checksum: the sum of all parameters' bits as integers, each array times its own odd number.
    One changed bit changes its array's sum by a power of two, and so the total."""
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    total: Any = 0
    for place, parameter in enumerate(parameters.values()):
        bits = parameter.detach().view(words[parameter.element_size()])
        total = total + bits.sum(dtype=torch.int64) * (2 * place + 1)
    return int(total)


def first_nonfinite(
    layers: Mapping[str, nn.Module], run: Callable[[], object] | None = None
) -> str:
    """See `SupportsWeightInspection`: e.g. `the output of fc1`. `run` is a forward pass; without it
    only weights are checked."""
    for name, layer in layers.items():
        for role, parameter in layer.named_parameters(recurse=False):
            if not bool(torch.isfinite(parameter).all()):
                return f"the {role} of {name}"
    if run is None:
        return ""
    found: list[str] = []

    def check(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        values = [v for v in outputs if isinstance(v, Tensor) and v.is_floating_point()]
        if not found and not all(bool(torch.isfinite(v).all()) for v in values):
            found.append(name)

    with ExitStack() as hooks, torch.no_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(check, name)))
        run()
    return f"the output of {found[0]}" if found else ""
