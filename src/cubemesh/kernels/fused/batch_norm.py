"""Fused batch normalization: relu(norm(x) + residual) as one operation with one backward pass.

The residual add and the ReLU are optional. On a GPU with Triton it runs as kernels, in the launches
that measured fastest for its shape (`triton/batch_norm/autotune.py`), if they are faster than
PyTorch's own operations; on a CPU as `cpu/cpu_kernels.cpp`, likewise. The kernels return the
result once per reader: autograd then passes each reader's gradient separately, and the backward
kernel adds them as it reads them, which saves a pass over the array.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Readers = tuple[Tensor, ...]
"""The same array, once per reader."""
SavedForBackward = tuple[Tensor, ...]
"""What the kernels save in the forward pass for the backward pass, besides their input."""


class BatchNormKernels(Protocol):
    """Both passes, for channels-last arrays of one shape."""

    shape: torch.Size
    """The only one that they accept: each launch has the same number of programs."""

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, SavedForBackward]:
        """The result, and what the backward pass needs; updates the running statistics."""

    def backward(
        self,
        gradients: tuple[Tensor, ...],
        x: Tensor,
        affine: tuple[Tensor, Tensor],
        saved: SavedForBackward,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """The gradients of x, residual (None without one), weight and bias, from one or two
        gradients of the result; `affine` is weight and bias."""


class FusedBatchNorm(nn.Module):
    """relu(norm(x) + residual) in training, for `readers` readers; `norm` owns the parameters."""

    def __init__(self, norm: nn.BatchNorm2d, *, add: bool, relu: bool, readers: int) -> None:
        super().__init__()
        self.norm, self.add, self.relu, self.readers = norm, add, relu, readers
        self.kernels: BatchNormKernels | None = None
        """The implementation; None for PyTorch's own operations."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Readers:
        """(batch, channels, height, width) each → the same, once per reader."""
        if self.kernels is None or x.shape != self.kernels.shape:
            result = self.norm(x)
            if residual is not None:
                result = result + residual
            return (F.relu(result) if self.relu else result,) * self.readers
        results: Readers = _BatchNorm.apply(  # type: ignore[no-untyped-call]
            x, residual, self.norm.weight, self.norm.bias, self
        )
        return results

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        how = self.kernels or "PyTorch's own"
        return f"add={self.add}, relu={self.relu}, readers={self.readers}, {how}"


class _BatchNorm(torch.autograd.Function):
    """The kernels, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        op: FusedBatchNorm,
    ) -> Readers:
        assert op.kernels is not None
        x = channels_last(x)
        if residual is not None:
            residual = channels_last(residual)
        result, saved = op.kernels.forward(x, residual, op.norm)
        ctx.kernels = op.kernels
        ctx.save_for_backward(x, weight, bias, *saved)
        return once_per_reader(result, op.readers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, *saved = ctx.saved_tensors
        found = ctx.kernels.backward(two_at_most(gradients), x, (weight, bias), tuple(saved))
        return (*found, None)


def two_at_most(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """The readers' gradients, added up until two are left: the kernels take two."""
    given = [channels_last(gradient) for gradient in gradients if gradient is not None]
    while len(given) > 2:
        given[-2:] = [given[-2] + given[-1]]
    return tuple(given)


def once_per_reader(result: Tensor, readers: int) -> Readers:
    """A result as an autograd function returns it for several readers."""
    return (result, *(_alias(result) for _ in range(readers - 1)))


def channels_last(image: Tensor) -> Tensor:
    """(batch, channels, height, width) itself, or a copy in channels-last."""
    return image.contiguous(memory_format=torch.channels_last)


def _alias(result: Tensor) -> Tensor:
    """The same memory as another tensor, which autograd treats as a separate result."""
    other = torch.empty(0, dtype=result.dtype, device=result.device)
    other.set_(result.untyped_storage(), result.storage_offset(), result.size(), result.stride())
    return other
