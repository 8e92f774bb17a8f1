"""Product with the classes' weights and mean cross-entropy as one operation, on a GPU.

The logits of a language model are its largest array by far. Here they exist once, in the type of
the product: `triton/cross_entropy.py` computes the losses and replaces the logits by their
gradient in one launch, where PyTorch's operations make three copies in float32. The classes are
padded to a multiple of 128, so that every row of the logits is aligned: 50,257 is odd, and cuBLAS
multiplies such matrices by slower kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PADDED_TO = 128
"""Classes in multiples of this."""


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    ignored: int,
    scale: float = 1.0,
    bias: Tensor | None = None,
) -> Tensor:
    """The mean cross-entropy of softmax(x · weightᵀ + bias), x (rows, features), over the rows
    whose label is not `ignored`; a scalar in float32. `scale`: the gradient that the loss will have
    in the backward pass, which does not read it: other gradients are scaled before they are
    rounded."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, labels, ignored, scale
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        ignored: int,
        scale: float,
    ) -> Tensor:
        from cubemesh.kernels.triton.cross_entropy import cross_entropy

        classes, features = weight.shape
        padded = x.new_zeros(-(-classes // PADDED_TO) * PADDED_TO, features)
        padded[:classes].copy_(weight)
        if bias is None:
            logits = torch.mm(x, padded.t())
        else:
            added = x.new_zeros(len(padded))
            added[:classes].copy_(bias)
            logits = torch.addmm(added, x, padded.t())
        counted = (labels != ignored).sum()
        losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
        gradient = any(ctx.needs_input_grad)
        cross_entropy(logits, classes, labels, counted, losses, ignored, scale, gradient)
        if gradient:
            ctx.save_for_backward(x, padded, logits)
        ctx.classes, ctx.dtype = classes, weight.dtype
        ctx.bias_type = None if bias is None else bias.dtype
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, padded, gradient = ctx.saved_tensors
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.mm(gradient, padded)
        if ctx.needs_input_grad[1]:
            dweight = torch.mm(gradient.t(), x)[: ctx.classes].to(ctx.dtype)
        if ctx.needs_input_grad[2]:
            dbias = gradient.sum(0, dtype=torch.float32)[: ctx.classes].to(ctx.bias_type)
        return dx, dweight, dbias, None, None, None
