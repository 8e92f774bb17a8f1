# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Cross-entropy of the rows of a matrix of logits in Triton: the loss of each row and, in place,
the gradient of the logits. Two passes over a row: the second finds it in the cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


def cross_entropy(
    logits: Tensor,
    classes: int,
    labels: Tensor,
    counted: Tensor,
    losses: Tensor,
    ignored: int,
    scale: float,
    gradient: bool,
) -> None:
    """Write the loss of each row of `logits` (rows, classes and padding), divided by `counted`, to
    `losses`: 0 where the label is `ignored`. With `gradient`, replace the logits by the gradient of
    `scale` times the sum of `losses`: 0 in the padding."""
    cross_entropy_kernel[(len(logits),)](
        logits, labels, counted, losses, logits.shape[1], classes, scale, ignored, gradient, BLOCK,
        num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def cross_entropy_kernel(
    logits, labels, counted, losses, width, classes, scale, ignored,
    gradient: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """See `cross_entropy`; one program per row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    label = tl.load(labels + row)
    counts = label != ignored
    most = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, classes, block):
        at = start + tl.arange(0, block)
        value = tl.load(logits + at, mask=at < classes, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(most, value)
        reference = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(most - reference) + tl.exp(value - reference)
        most = larger
    peak = tl.max(most, 0)
    total = tl.sum(total * tl.exp(most - peak), 0)
    own = tl.load(logits + label, mask=counts, other=0.0).to(tl.float32)
    rows = tl.load(counted).to(tl.float32)
    loss = tl.log(total) + peak - own
    tl.store(losses + row, tl.where(counts, loss / rows, 0.0))
    if gradient:
        factor = tl.where(counts, scale / rows, 0.0)
        share = factor / total
        tl.debug_barrier()  # own is read before it is overwritten
        for start in range(0, width, block):
            at = start + tl.arange(0, block)
            value = tl.load(logits + at, mask=at < classes, other=float("-inf")).to(tl.float32)
            made = tl.exp(value - peak) * share - tl.where(at == label, factor, 0.0)
            made = tl.where(counts, made, 0.0)  # also where a logit is not finite
            tl.store(logits + at, made.to(logits.dtype.element_ty), mask=at < width)
