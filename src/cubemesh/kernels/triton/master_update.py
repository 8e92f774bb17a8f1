# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Updates of fp32 master weights from 16-bit gradients in Triton: one pass over each array, which
also writes the 16-bit copy that the next step reads. All arrays of a weight have one layout."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


def sgd(
    master: Tensor,
    gradient: Tensor,
    copy: Tensor,
    velocity: Tensor | None,
    *,
    rate: float,
    momentum: float,
    decay: float,
    scale: float,
) -> None:
    """g = gradient / scale + decay · w; v = momentum · v + g; w −= rate · v, without momentum
    rate · g."""
    n, moving = master.numel(), velocity is not None
    master_sgd_kernel[(-(-n // BLOCK),)](
        master, gradient, copy, velocity if moving else master, n, rate, momentum, decay,
        1 / scale, moving, BLOCK, num_warps=WARPS,
    )  # fmt: skip


def adam(
    master: Tensor,
    gradient: Tensor,
    copy: Tensor,
    first: Tensor,
    second: Tensor,
    corrections: Tensor,
    *,
    rate: float,
    betas: tuple[float, float],
    epsilon: float,
    decay: float,
    decoupled: bool,
    scale: float,
) -> None:
    """Adam, or with `decoupled` decay AdamW. `corrections`: 1 − β₁ᵗ, and the root of 1 − β₂ᵗ."""
    n = master.numel()
    master_adam_kernel[(-(-n // BLOCK),)](
        master, gradient, copy, first, second, corrections, n, rate, *betas, epsilon, decay,
        1 / scale, decoupled, BLOCK, num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def master_sgd_kernel(
    master, gradient, copy, velocity, n, rate, momentum, decay, factor,
    moving: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """See `sgd`."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < n
    w = tl.load(master + at, mask=inside)
    g = tl.load(gradient + at, mask=inside).to(tl.float32) * factor + decay * w
    if moving:
        g = momentum * tl.load(velocity + at, mask=inside) + g
        tl.store(velocity + at, g, mask=inside)
    w -= rate * g
    tl.store(master + at, w, mask=inside)
    tl.store(copy + at, w.to(copy.dtype.element_ty), mask=inside)


@triton.jit
def master_adam_kernel(
    master, gradient, copy, first, second, corrections, n, rate, beta1, beta2, epsilon, decay,
    factor, decoupled: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """See `adam`."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < n
    w = tl.load(master + at, mask=inside)
    g = tl.load(gradient + at, mask=inside).to(tl.float32) * factor
    if decoupled:
        w -= rate * decay * w
    else:
        g += decay * w
    m = tl.load(first + at, mask=inside)
    m += (g - m) * (1 - beta1)
    v = tl.load(second + at, mask=inside) * beta2 + (1 - beta2) * g * g
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    step_size = rate / tl.load(corrections)
    w -= step_size * m / (tl.sqrt(v) / tl.load(corrections + 1) + epsilon)
    tl.store(master + at, w, mask=inside)
    tl.store(copy + at, w.to(copy.dtype.element_ty), mask=inside)
