"""All weights of a segment made narrow at once, and their gradients wide again.

Autocast converts each weight by itself when a layer reads it, and each gradient when it is made:
two small kernels for every layer. Here a segment's weights are converted together, by the same
rounding. A segment's gradients come together too, when its backward pass is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def narrowed(
    weights: Sequence[Tensor], dtype: torch.dtype, joined: Callable[[], None] = lambda: None
) -> tuple[Tensor, ...]:
    """Each of `weights` in `dtype`; their gradients arrive in the weights' own type. `joined` is
    called before the gradients are read."""
    made: tuple[Tensor, ...] = _Narrow.apply(dtype, joined, *weights)  # type: ignore[no-untyped-call]
    return made


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, joined: Callable[[], None], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.joined = joined
        ctx.like = [(w.shape, w.stride(), w.dtype) for w in weights]
        made = [torch.empty_like(w, dtype=dtype) for w in weights]
        torch._foreach_copy_(made, [w.detach() for w in weights])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        ctx.joined()
        made = [
            torch.empty_strided(shape, stride, dtype=dtype, device=slope.device)
            for slope, (shape, stride, dtype) in zip(slopes, ctx.like, strict=True)
        ]
        torch._foreach_copy_(made, list(slopes))
        return (None, None, *made)
