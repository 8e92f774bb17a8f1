"""AdamW with block-wise quantized 8-bit moments (Dettmers et al. 2022, arXiv:2110.02861).

Each moment of a large array is one byte a value, and for every block of 256 values (in the array's
order) its largest magnitude in the type of the weights:

    value ≈ scale of the block · code[byte]        byte: the nearest code of value / scale

A code has 256 numbers in [-1, 1] (first moment) or [0, 1] (second): dynamic tree quantization
(section 1.3 of the paper). Of the decades 10^(i − 7) to 10^(i − 6), i = 0 … 6, each is divided into
2^i equal intervals (2^(i+1) where there is no sign) whose middles are the codes; 0 and 1 are codes
too. So values above a tenth of the scale are rounded by 0.7 % of it at most, and ones a million
times smaller are still distinguished.

A step dequantizes a block, updates both moments as AdamW does, updates the weights with them, and
quantizes them again: the rounding of a step reaches the next step alone. A second moment above 0 is
never rounded to 0, where the next update would be many times too large. Arrays of fewer than 4,096
values have fp32 moments, as in the paper.

Arrays are updated in chunks of `CHUNK` values, so temporaries are bounded (`UPDATE_ARRAYS`). All is
computed by operators of PyTorch on the device, without a synchronization, and can be captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim

from cubemesh.networks.memory import EIGHT_BIT_BLOCK, EIGHT_BIT_CHUNK, FEWEST_EIGHT_BIT_VALUES

BETAS = (0.9, 0.999)
EPSILON = 1e-8
_DECADES = 7


class AdamW8bit(optim.Optimizer):
    """AdamW over `parameters`; `small` makes the optimizer of the arrays with fp32 moments."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        small: type[optim.AdamW],
        *,
        rate: float,
        decay: float,
    ) -> None:
        # "fused": a checkpoint restores counts of steps to the device (state_dict.py).
        settings = {"lr": rate, "weight_decay": decay, "fused": True, "capturable": False}
        super().__init__(parameters, settings)
        own = [p for group in self.param_groups for p in group["params"]]
        exact = [p for p in own if p.numel() < FEWEST_EIGHT_BIT_VALUES]
        self._small: optim.AdamW | None = None
        if exact:
            self._small = small(exact, lr=rate, weight_decay=decay, fused=True)
            self._small.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        (group,) = self.param_groups
        if self._small is not None:
            for own in self._small.param_groups:
                own |= {name: group[name] for name in ("lr", "capturable")}
            self._small.step()
        for weight in group["params"]:
            if weight.grad is not None and weight.numel() >= FEWEST_EIGHT_BIT_VALUES:
                self._update(weight, group["lr"], group["weight_decay"])

    def _update(self, weight: nn.Parameter, rate: float, decay: float) -> None:
        state = self._state_of(weight)
        step = state["step"]
        step.add_(1)
        corrections = [(1 - beta ** step.double()).to(weight.dtype) for beta in BETAS]
        assert weight.grad is not None
        values, gradients = weight.detach().reshape(-1), weight.grad.reshape(-1)
        for part, blocks in _chunks(weight.numel()):
            w = values[part]
            g = gradients[part].to(w.dtype)
            moments = []
            for name, beta, term in (("exp_avg", BETAS[0], g), ("exp_avg_sq", BETAS[1], g * g)):
                bytes_, scales = state[name][part], state[f"{name}_scale"][blocks]
                signed = name == "exp_avg"
                moment = dequantize(bytes_, scales, signed).lerp_(term, 1 - beta)
                quantize(moment, signed, bytes_, scales)
                moments.append(moment)
            first, second = moments
            divisor = second.div_(corrections[1]).sqrt_().add_(EPSILON)
            w.mul_(1 - rate * decay).sub_(first.div_(corrections[0]).div_(divisor).mul_(rate))
        if values.data_ptr() != weight.data_ptr():  # of another layout: a copy was updated
            weight.detach().copy_(values.view(weight.shape))

    def _state_of(self, weight: nn.Parameter) -> dict[str, Any]:
        state = cast(dict[str, Any], self.state[weight])
        if not state:
            count, blocks = weight.numel(), -(-weight.numel() // EIGHT_BIT_BLOCK)
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            for name in ("exp_avg", "exp_avg_sq"):
                zero = code_of_zero(name == "exp_avg")
                state[name] = torch.full((count,), zero, dtype=torch.uint8, device=weight.device)
                state[f"{name}_scale"] = torch.zeros(
                    blocks, dtype=weight.dtype, device=weight.device
                )
        return state


def quantize(x: Tensor, signed: bool, into: Tensor, scales: Tensor) -> None:
    """Write the bytes of `x`, (values,), to `into` and the largest magnitude of each block to
    `scales`."""
    count = x.numel()
    rows = F.pad(x, (0, -count % EIGHT_BIT_BLOCK)).view(-1, EIGHT_BIT_BLOCK)
    largest = rows.abs().amax(1)
    scales.copy_(largest)
    scaled = rows / torch.where(largest > 0, largest, 1).unsqueeze(1)
    found = _nearest(scaled, signed)
    if not signed:
        found.clamp_(min=1).mul_(rows > 0)
    into.copy_(found.view(-1)[:count])


def _nearest(scaled: Tensor, signed: bool) -> Tensor:
    """Numbers of the nearest codes, int32. In fp32 by a table of the upper 16 bits, in whose
    intervals there is one border at most; a binary search takes six times as long on a CPU."""
    borders = _borders(signed, scaled.dtype, scaled.device)
    if scaled.dtype != torch.float32:
        return torch.bucketize(scaled, borders, out_int32=True)
    flat = scaled.reshape(-1)
    upper = (flat.view(torch.int32) >> 16).bitwise_and_(0xFFFF)
    least = _least_codes(signed, scaled.device).index_select(0, upper)
    least += flat > F.pad(borders, (0, 1), value=torch.inf).index_select(0, least)
    return least.view(scaled.shape)


@cache
def _least_codes(signed: bool, device: torch.device) -> Tensor:
    """For the upper 16 bits of a float32, the nearest code of the least such number."""
    bits = torch.arange(2**16, dtype=torch.int32) << 16
    bits[2**15 :] |= 0xFFFF  # of negative numbers the least has the largest bits
    borders = _borders(signed, torch.float32, torch.device("cpu"))
    return torch.bucketize(bits.view(torch.float32), borders, out_int32=True).to(device)


def dequantize(bytes_: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """The values, (values,), in the type of the scales."""
    count = bytes_.numel()
    codes = _codes(signed, scales.dtype, scales.device).index_select(0, bytes_.int())
    rows = F.pad(codes, (0, -count % EIGHT_BIT_BLOCK)).view(-1, EIGHT_BIT_BLOCK)
    return (rows * scales.unsqueeze(1)).view(-1)[:count]


@cache
def dynamic_codes(signed: bool) -> tuple[float, ...]:
    """The 256 numbers of a code, in increasing order."""
    found = [0.0, 1.0]
    for decade in range(_DECADES):
        parts = 2 ** (decade if signed else decade + 1)
        width = 0.9 / parts
        middles = [0.1 + (n + 0.5) * width for n in range(parts)]
        scale = 10.0 ** (decade - _DECADES + 1)
        found += [scale * middle for middle in middles]
        found += [-scale * middle for middle in middles] if signed else []
    return tuple(sorted(found))


@cache
def code_of_zero(signed: bool) -> int:
    """The byte of 0."""
    return dynamic_codes(signed).index(0.0)


@cache
def _codes(signed: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(dynamic_codes(signed), dtype=dtype, device=device)


@cache
def _borders(signed: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Middles between neighbouring codes."""
    codes = torch.tensor(dynamic_codes(signed), dtype=torch.float64)
    return ((codes[1:] + codes[:-1]) / 2).to(dtype).to(device)


def _chunks(count: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of values, and of their blocks."""
    for begin in range(0, count, EIGHT_BIT_CHUNK):
        end = min(begin + EIGHT_BIT_CHUNK, count)
        yield (
            slice(begin, end),
            slice(begin // EIGHT_BIT_BLOCK, -(-end // EIGHT_BIT_BLOCK)),
        )
