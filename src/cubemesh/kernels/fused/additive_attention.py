"""Additive attention scores (Bahdanau): v · tanh(query + key) of all pairs as one operation.

On a GPU by `triton/additive_attention.py` where that measured faster; elsewhere by PyTorch's own
operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MOST_VALUES = 2**31
"""Of an array that the kernels can index."""

ROWS, OTHERS, FEATURES, WARPS = 4, 16, 32, 4
"""Pairs that one program of a kernel holds in registers (`ROWS`: positions whose gradient it
computes, queries in the forward pass), and its warps: the fastest at 512 to 2,048 features on an
H200 (benchmarks/LOG.md)."""


class FusedAttentionScores(nn.Module):
    """v · tanh(query + key) for each pair of positions; v is the weight of `product`, which has
    one output and no bias."""

    def __init__(self, product: nn.Linear) -> None:
        super().__init__()
        self.product = product
        self.kernels = False
        """Whether it runs as kernels, where they measured faster."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(batch, queries, features), (batch, keys, features) → (batch, queries, keys, 1)."""
        if self.kernels:
            found: Tensor = _Scores.apply(queries, keys, self.product.weight)  # type: ignore[no-untyped-call]
            return found
        own: Tensor = self.product(torch.tanh(queries.unsqueeze(2) + keys.unsqueeze(1)))
        return own

    def usable(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether the kernels accept arrays: both of one type, 16- or 32-bit floats."""
        return (
            queries.dtype == keys.dtype
            and queries.dtype in (torch.float32, torch.bfloat16, torch.float16)
            and max(queries.numel(), keys.numel()) < MOST_VALUES
            and queries.numel() * keys.shape[1] // queries.shape[2] < MOST_VALUES
        )


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        from cubemesh.kernels.triton.additive_attention import scores_forward_kernel

        queries, keys = queries.contiguous(), keys.contiguous()
        batch, rows, features = queries.shape
        others = keys.shape[1]
        scores = queries.new_empty(batch, rows, others, 1)
        grid = (batch, -(-rows // ROWS), -(-others // OTHERS))
        scores_forward_kernel[grid](
            *(queries, keys, weight, scores, rows, others, features),
            *(ROWS, OTHERS, FEATURES),
            num_warps=WARPS,
        )
        ctx.save_for_backward(queries, keys, weight)
        return scores

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, weight = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        of_queries, parts = _gradients(queries, keys, weight, grad_output, of_keys=False)
        of_keys, _ = _gradients(keys, queries, weight, grad_output, of_keys=True)
        assert parts is not None, "computed with the queries"
        of_weight = parts.sum(0).view_as(weight).to(weight.dtype)
        return of_queries, of_keys, of_weight


def _gradients(
    rows: Tensor,
    others: Tensor,
    weight: Tensor,
    grad_output: Tensor,
    *,
    of_keys: bool,
) -> tuple[Tensor, Tensor | None]:
    """The gradient of `rows`, queries or keys; with queries also partial gradients of the weight,
    (parts, features), to be summed."""
    from cubemesh.kernels.triton.additive_attention import scores_backward_kernel

    batch, many, features = rows.shape
    found, blocks = torch.empty_like(rows), -(-many // ROWS)
    parts = None if of_keys else torch.empty(batch * blocks, features, device=rows.device)
    strides = (1, grad_output.shape[2]) if of_keys else (grad_output.shape[2], 1)
    scores_backward_kernel[batch, blocks, -(-features // FEATURES)](
        *(rows, others, weight, grad_output, found, found if parts is None else parts),
        *(many, others.shape[1], features, *strides, parts is not None),
        *(ROWS, OTHERS, FEATURES),
        num_warps=WARPS,
    )
    return found, parts
