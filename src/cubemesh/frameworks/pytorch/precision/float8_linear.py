"""Linear layers whose products are computed in 8-bit floats (FP8), for `precision_of=NAME=fp8`.

Activations and weights are cast to E4M3, gradients of the result to E5M2 (P. Micikevicius et al.,
"FP8 Formats for Deep Learning", 2022). Each array has one scale, its largest magnitude over the
largest number of the format, computed from the array itself in every step, so nothing is saved
between steps. Products accumulate in fp32, and the result and the gradient of the input are bf16.
The gradient of the weight has the weight's own type.

    forward    y  = x8 w8ᵀ + bias
    backward   dx = g8 w8,   dw = g8ᵀ x8

The backward pass reads the 8-bit copies of the forward pass: the saved activation takes half the
memory of bf16. A compiler fuses the casts with what is before them; in eager mode each is several
kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MULTIPLE = 16
"""Of which the inner length of a product must be a multiple, and its columns."""
CAPABILITY = (8, 9)
"""First compute capability of NVIDIA GPUs with FP8 products."""
SMALLEST = 1e-12
"""Largest magnitude of an array below which its scale does not fall."""


def supported(device: str) -> bool:
    """Whether products in FP8 run on a device; on a CPU they do, without being faster."""
    if not hasattr(torch, "_scaled_mm"):
        return False
    kind = torch.device(device).type
    return kind == "cpu" or (
        kind == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY
    )


class Float8Linear(nn.Linear):
    """A linear layer with products in FP8."""

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) → (…, out), in bf16."""
        return self.product(input, self.weight)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """The result with `weight` in place of the layer's own, such as a copy in bf16."""
        return float8_linear(x, weight, self.bias)


def float8_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wᵀ + bias of (…, in), (out, in), (out), in bf16."""
    rows = x.flatten(0, -2) if x.ndim > 2 else x
    found: Tensor = _Product.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return found.view(*x.shape[:-1], weight.shape[0])


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x8, x_scale = cast(x, torch.float8_e4m3fn)
        w8, w_scale = cast(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        ctx.types = x.dtype, weight.dtype, None if bias is None else bias.dtype
        added = None if bias is None else bias.to(torch.bfloat16)
        return multiply(x8, w8.t(), x_scale, w_scale, bias=added, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        x_type, w_type, bias_type = ctx.types
        g8, g_scale = cast(g, torch.float8_e5m2)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = multiply(g8, column_major(w8), g_scale, w_scale).to(x_type)
        if ctx.needs_input_grad[1]:
            wide = w_type if w_type == torch.float32 else torch.bfloat16
            g8, x8 = whole_rows(g8), whole_rows(x8)
            dw = multiply(g8.t().contiguous(), column_major(x8), g_scale, x_scale, wide).to(w_type)
        if bias_type is not None and ctx.needs_input_grad[2]:
            db = g.sum(0, dtype=torch.float32).to(bias_type)
        return dx, dw, db


def cast(x: Tensor, to: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` over its scale in an 8-bit format, and the scale, an fp32 scalar."""
    most = torch.finfo(to).max
    scale = x.abs().amax().to(torch.float32).clamp(min=SMALLEST) / most
    return (x.to(torch.float32) / scale).clamp(-most, most).to(to), scale


def column_major(x: Tensor) -> Tensor:
    """The same matrix, its columns contiguous, as the second factor must be."""
    return x.t().contiguous().t()


def whole_rows(x: Tensor) -> Tensor:
    """`x` with rows of zeros, so that it has a multiple of `MULTIPLE`."""
    missing = -x.shape[0] % MULTIPLE
    if not missing:
        return x
    return torch.cat([x, torch.zeros((missing, x.shape[1]), dtype=x.dtype, device=x.device)])


def multiply(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    bias: Tensor | None = None,
    fast: bool = False,
) -> Tensor:
    """a b + bias, of arrays in FP8 and their scales; `fast` accumulates within the product's own
    precision on a GPU."""
    found: Tensor = torch._scaled_mm(
        a, b, scale_a=a_scale, scale_b=b_scale, bias=bias, out_dtype=dtype, use_fast_accum=fast
    )
    return found
