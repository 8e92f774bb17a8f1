"""Scores of attention by a perceptron: the sum of each pair, its tanh and a product, as one.

On a GPU by the kernels of `score_kernels.py` where those were found to be faster, elsewhere by
PyTorch's own operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MOST_VALUES = 2**31
"""Of an array that the kernels can index."""


@dataclass(frozen=True)
class Tiling:
    """The pairs that one program of a kernel holds in registers, and its warps."""

    rows: int
    """Positions whose gradient it makes; queries in the forward pass."""
    others: int
    features: int
    warps: int

    @property
    def blocks(self) -> tuple[int, int, int]:
        """As the kernels take it."""
        return self.rows, self.others, self.features


TILINGS = (Tiling(4, 16, 32, 4), Tiling(8, 16, 16, 4), Tiling(4, 16, 64, 8))
"""Those that are tried; a power of two in each direction."""


class FusedScores(nn.Module):
    """v · tanh(query + key) for each pair of positions; v is the weight of `product`, which makes
    one number and has no bias."""

    def __init__(self, product: nn.Linear) -> None:
        super().__init__()
        self.product = product
        self.tiling: Tiling | None = None
        """Of its kernels; None is PyTorch's own operations."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(batch, queries, features), (batch, keys, features) → (batch, queries, keys, 1)."""
        if self.tiling is not None:
            given = (queries, keys, self.product.weight, self.tiling)
            found: Tensor = _Scores.apply(*given)  # type: ignore[no-untyped-call]
            return found
        own: Tensor = self.product(torch.tanh(queries.unsqueeze(2) + keys.unsqueeze(1)))
        return own

    def usable(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether the kernels can take arrays: two of the same 16- or 32-bit floats."""
        return (
            queries.dtype == keys.dtype
            and queries.dtype in (torch.float32, torch.bfloat16, torch.float16)
            and max(queries.numel(), keys.numel()) < MOST_VALUES
            and queries.numel() * keys.shape[1] // queries.shape[2] < MOST_VALUES
        )


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, weight: Tensor, tiling: Tiling) -> Tensor:
        from cubemesh.kernels.triton.additive_attention import scores_forward_kernel

        queries, keys = queries.contiguous(), keys.contiguous()
        batch, rows, features = queries.shape
        others = keys.shape[1]
        scores = queries.new_empty(batch, rows, others, 1)
        grid = (batch, -(-rows // tiling.rows), -(-others // tiling.others))
        scores_forward_kernel[grid](
            *(queries, keys, weight, scores, rows, others, features),
            *tiling.blocks,
            num_warps=tiling.warps,
        )
        ctx.save_for_backward(queries, keys, weight)
        ctx.tiling = tiling
        return scores

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, keys, weight = ctx.saved_tensors
        slope, tiling = slope.contiguous(), ctx.tiling
        of_queries, shares = _slopes(queries, keys, weight, slope, tiling, of_keys=False)
        of_keys, _ = _slopes(keys, queries, weight, slope, tiling, of_keys=True)
        assert shares is not None, "taken with the queries"
        of_weight = shares.sum(0).view_as(weight).to(weight.dtype)
        return of_queries, of_keys, of_weight, None


def _slopes(
    rows: Tensor, others: Tensor, weight: Tensor, slope: Tensor, tiling: Tiling, *, of_keys: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradient of `rows`, queries or keys; of queries also shares of the weight's, (shares,
    features), to be summed."""
    from cubemesh.kernels.triton.additive_attention import scores_backward_kernel

    batch, many, features = rows.shape
    found, blocks = torch.empty_like(rows), -(-many // tiling.rows)
    shares = None if of_keys else torch.empty(batch * blocks, features, device=rows.device)
    strides = (1, slope.shape[2]) if of_keys else (slope.shape[2], 1)
    scores_backward_kernel[batch, blocks, -(-features // tiling.features)](
        *(rows, others, weight, slope, found, found if shares is None else shares),
        *(many, others.shape[1], features, *strides, shares is not None),
        *tiling.blocks,
        num_warps=tiling.warps,
    )
    return found, shares
