"""Precision of one product by pass: computed in one type, its gradients in another.

    forward     x, weight, bias ──cast──▶ product ──▶ result
    backward    gradient of the result, x, weight ──cast──▶ gradients, in the types of x and weight

Autocast has one type for both passes, and none for float64. A float64 result is rounded to float32,
the widest type that the layers around it take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True)
class PassTypes:
    """The types a product and its gradients are computed in."""

    forward: torch.dtype
    backward: torch.dtype


def set_pass_types(module: nn.Module, types: PassTypes) -> nn.Module:
    """`module`, a convolution or matrix product, changed so that it computes in `types`."""
    assert isinstance(module, (nn.Conv2d, nn.Linear)), "only products have a precision of their own"
    module.forward = partial(_compute, module, types)  # type: ignore[method-assign]
    return module


def _compute(module: nn.Conv2d | nn.Linear, types: PassTypes, x: Tensor) -> Tensor:
    found: Tensor = _Product.apply(x, module.weight, module.bias, module, types)  # type: ignore[no-untyped-call]
    return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        module: nn.Conv2d | nn.Linear,
        types: PassTypes,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.module, ctx.types = module, types
        dtype = types.forward
        own = None if bias is None else bias.to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            if isinstance(module, nn.Linear):
                y = F.linear(x.to(dtype), weight.to(dtype), own)
            else:
                y = F.conv2d(
                    x.to(dtype),
                    weight.to(dtype),
                    own,
                    module.stride,
                    module.padding,
                    module.dilation,
                    module.groups,
                )
        return y.float() if dtype == torch.float64 else y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dtype, wanted = ctx.types.backward, ctx.needs_input_grad[:3]
        given = (gradients[0].to(dtype), x.to(dtype), weight.to(dtype))
        with torch.autocast(x.device.type, enabled=False):
            if isinstance(ctx.module, nn.Linear):
                found = _linear_gradients(*given, wanted)
            else:
                found = _convolution_gradients(ctx.module, *given, wanted)
        types = (x.dtype, weight.dtype, weight.dtype)
        results = (None if g is None else g.to(t) for g, t in zip(found, types, strict=True))
        return (*results, None, None)


def _linear_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    rows = gradient.flatten(0, -2)
    return (
        gradient @ weight if wanted[0] else None,
        rows.T @ x.flatten(0, -2) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


def _convolution_gradients(
    module: nn.Conv2d, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient,
        x,
        weight,
        [module.out_channels],
        module.stride,
        module.padding,
        module.dilation,
        False,
        [0, 0],
        module.groups,
        list(wanted),
    )
    return tuple(g if asked else None for g, asked in zip(found, wanted, strict=True))
