"""Cast of a segment's master weights to low precision at once, and of its gradients back to fp32.

Autocast casts each weight when a layer reads it and each gradient when it is computed: two small
kernels per layer. Here a segment's weights are cast together, with the same rounding, and its
gradients at the end of the segment's backward pass, directly into their buckets where there are
any, which saves a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class GradientPlace(NamedTuple):
    """The destination of a gradient."""

    written: Tensor
    """The array that it is written to."""
    gradient: Tensor
    """The array that autograd receives, a new view in each call. It shares `written`'s memory or,
    if `written` is low precision, it is the fp32 array that the gradient will be cast to."""


PlaceOf = Callable[[Tensor], "GradientPlace | None"]
"""Destination of a weight's gradient; None for any."""


def no_destination(weight: Tensor) -> GradientPlace | None:
    """No destination: autograd allocates the gradient."""
    return None


def cast_together(
    weights: Sequence[Tensor],
    dtype: torch.dtype,
    join: Callable[[], None] = lambda: None,
    place_of: PlaceOf = no_destination,
) -> tuple[Tensor, ...]:
    """Each of `weights` in `dtype`; their gradients have the weights' own dtype. `join` is called
    before the gradients are read."""
    cast: tuple[Tensor, ...] = _CastTogether.apply(dtype, join, place_of, *weights)  # type: ignore[no-untyped-call]
    return cast


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        dtype: torch.dtype,
        join: Callable[[], None],
        place_of: PlaceOf,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.join, ctx.place_of, ctx.weights = join, place_of, weights
        cast = [torch.empty_like(w, dtype=dtype) for w in weights]
        torch._foreach_copy_(cast, [w.detach() for w in weights])
        return tuple(cast)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        ctx.join()
        written, cast = [], []
        for weight in ctx.weights:
            place = ctx.place_of(weight)
            if place is None:
                own = torch.empty_like(weight)
                place = GradientPlace(own, own)
            written.append(place.written)
            cast.append(place.gradient)
        torch._foreach_copy_(written, list(grad_outputs))
        return (None, None, None, *cast)
