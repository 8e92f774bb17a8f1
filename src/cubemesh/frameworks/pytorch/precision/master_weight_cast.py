"""All weights of a segment made narrow at once, and their gradients wide again.

Autocast converts each weight by itself when a layer reads it, and each gradient when it is made:
two small kernels for every layer. Here a segment's weights are converted together, by the same
rounding. A segment's gradients come together too, when its backward pass is done, and are written
where they are wanted: where they travel in buckets, into those, which spares a copy of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Where a gradient is wanted."""

    written: Tensor
    """What it is written into."""
    gradient: Tensor
    """What autograd is given: an array of its own in each call, which it takes as it is. It lies
    there too or, where `written` is narrow, where the gradient will be made wide."""


PlaceOf = Callable[[Tensor], "Place | None"]
"""Of a weight; None leaves it open."""


def nowhere(weight: Tensor) -> Place | None:
    """No place of its own for a gradient."""
    return None


def cast_together(
    weights: Sequence[Tensor],
    dtype: torch.dtype,
    joined: Callable[[], None] = lambda: None,
    place_of: PlaceOf = nowhere,
) -> tuple[Tensor, ...]:
    """Each of `weights` in `dtype`; their gradients arrive in the weights' own type. `joined` is
    called before the gradients are read."""
    made: tuple[Tensor, ...] = _Narrow.apply(dtype, joined, place_of, *weights)  # type: ignore[no-untyped-call]
    return made


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        dtype: torch.dtype,
        joined: Callable[[], None],
        place_of: PlaceOf,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.joined, ctx.place_of, ctx.weights = joined, place_of, weights
        made = [torch.empty_like(w, dtype=dtype) for w in weights]
        torch._foreach_copy_(made, [w.detach() for w in weights])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        ctx.joined()
        written, made = [], []
        for weight in ctx.weights:
            place = ctx.place_of(weight)
            if place is None:
                own = torch.empty_like(weight)
                place = Place(own, own)
            written.append(place.written)
            made.append(place.gradient)
        torch._foreach_copy_(written, list(slopes))
        return (None, None, None, *made)
