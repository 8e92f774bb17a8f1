"""A batch normalisation with what follows it, as one operation with one backward pass.

    result = relu(norm(x) + residual)        each of the two at will

On a GPU with Triton it runs as kernels, in the launches that measured fastest for its shape
(`norm_choice.py`), if they beat PyTorch's own operations; everywhere else as those. The kernels
hand the result out once for each reader: autograd then brings each reader's gradient by itself, and
the backward kernel adds them where it reads them, which spares a pass over the array.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Readers = tuple[Tensor, ...]
"""One and the same array, once for each reader."""
Kept = tuple[Tensor, ...]
"""What the kernels keep from the forward pass for the backward pass, besides their input."""


class NormKernels(Protocol):
    """Both passes, for arrays of one shape in channels-last."""

    shape: torch.Size
    """The only one that they may be given: they count on the same programs in every launch."""

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, Kept]:
        """The result, and what the backward pass needs; updates the running statistics."""

    def backward(
        self, slopes: tuple[Tensor, ...], x: Tensor, norm: tuple[Tensor, Tensor], kept: Kept
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """The gradients of x, residual (None where nothing was added), weight and bias, from one or
        two gradients of the result; `norm` is weight and bias."""


class FusedNorm(nn.Module):
    """relu(norm(x) + residual) in training, for `readers` readers; `norm` keeps its arrays."""

    def __init__(self, norm: nn.BatchNorm2d, *, adds: bool, rectifies: bool, readers: int) -> None:
        super().__init__()
        self.norm, self.adds, self.rectifies, self.readers = norm, adds, rectifies, readers
        self.kernels: NormKernels | None = None
        """What it runs as; None for PyTorch's own operations."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Readers:
        """(batch, channels, height, width) each → the same, for each reader."""
        if self.kernels is None or x.shape != self.kernels.shape:
            result = self.norm(x)
            if residual is not None:
                result = result + residual
            return (F.relu(result) if self.rectifies else result,) * self.readers
        results: Readers = _Normalise.apply(  # type: ignore[no-untyped-call]
            x, residual, self.norm.weight, self.norm.bias, self
        )
        return results

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        how = self.kernels or "PyTorch's own"
        return f"adds={self.adds}, rectifies={self.rectifies}, readers={self.readers}, {how}"


class _Normalise(torch.autograd.Function):
    """The kernels, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, op: FusedNorm
    ) -> Readers:
        assert op.kernels is not None
        x = as_rows(x)
        if residual is not None:
            residual = as_rows(residual)
        result, kept = op.kernels.forward(x, residual, op.norm)
        ctx.kernels = op.kernels
        ctx.save_for_backward(x, weight, bias, *kept)
        return for_each_reader(result, op.readers)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, *kept = ctx.saved_tensors
        found = ctx.kernels.backward(two_at_most(slopes), x, (weight, bias), tuple(kept))
        return (*found, None)


def two_at_most(slopes: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """What the readers send back, of which the kernels add two."""
    given = [as_rows(slope) for slope in slopes if slope is not None]
    while len(given) > 2:
        given[-2:] = [given[-2] + given[-1]]
    return tuple(given)


def for_each_reader(result: Tensor, readers: int) -> Readers:
    """A result as autograd takes it for `readers` of them."""
    return (result, *(_again(result) for _ in range(readers - 1)))


def as_rows(image: Tensor) -> Tensor:
    """(batch, channels, height, width) as it is, or copied, so that the channels lie together."""
    return image.contiguous(memory_format=torch.channels_last)


def _again(result: Tensor) -> Tensor:
    """The same memory as another array, which autograd takes for a result of its own."""
    other = torch.empty(0, dtype=result.dtype, device=result.device)
    other.set_(result.untyped_storage(), result.storage_offset(), result.size(), result.stride())
    return other
