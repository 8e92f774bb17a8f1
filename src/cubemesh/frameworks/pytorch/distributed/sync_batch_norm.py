"""Synchronized batch normalization and dropout: the same results as one device with the global
batch.

Most layers treat each sample separately. Two do not:

    batch normalization   statistics are those of the global batch
    dropout               masks are drawn for the global batch on every rank, from one seed, and
                          each rank uses its own rows

With n positions on each of N ranks, μᵣ and σᵣ² their mean and variance there, the global statistics
are μ = mean of μᵣ and σ² = mean of (σᵣ² + (μᵣ - μ)²). Backward, with x̂ = (x - μ) / σ and the
gradient g of the result, ∂x = γ/σ · (g - mean(g) - x̂ · mean(g · x̂)), means over all ranks (Ioffe
and Szegedy, ICML 2015). Two small arrays are reduced in each pass. torch.nn.SyncBatchNorm does the
same, on GPUs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.pytorch.lowerings import SampleDropout


def synchronized(layer: nn.Module, *, group: Group, norm: bool, dropout: bool) -> nn.Module:
    """The synchronized version of a batch normalization (`norm`) or dropout; else the layer."""
    if norm and group.size > 1 and isinstance(layer, _BatchNorm):
        return SyncBatchNorm(layer, group)
    if dropout and isinstance(layer, nn.Dropout):
        return SyncDropout(layer.p, group)
    if dropout and isinstance(layer, SampleDropout):
        return SyncDropout(layer.rate, group, per_sample=True)
    return layer


class SyncDropout(nn.Module):
    """Dropout of this rank's rows of the global batch; every rank's generator must have the same
    seed."""

    def __init__(self, rate: float, group: Group, *, per_sample: bool = False) -> None:
        super().__init__()
        self.rate, self._group, self._per_sample = rate, group, per_sample
        self.drawn: Tensor | None = None
        """Numbers of these rows that were drawn before, in a pipeline; None: draw them."""

    def shape(self, rows: int, of: Sequence[int]) -> tuple[int, ...]:
        """Of the numbers to draw for `rows` samples of the shape `of`."""
        return (rows, *([1] * len(of) if self._per_sample else of))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, …), unchanged in shape."""
        if not self.training or self.rate == 0.0:
            return x
        drawn = self.drawn
        if drawn is None:
            batch, rank = x.shape[0], self._group.rank
            shape = self.shape(batch * self._group.size, x.shape[1:])
            drawn = torch.rand(shape, device=x.device)  # fp32: the same mask in every precision
            drawn = drawn[rank * batch : (rank + 1) * batch]
        keep = drawn >= self.rate
        return x * keep.to(x.dtype).div_(1.0 - self.rate)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"p={self.rate}, of {self._group.size} ranks"


class SyncBatchNorm(nn.Module):
    """Batch normalization with the statistics of the global batch."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm, group: Group) -> None:
        super().__init__()
        assert layer.momentum is not None
        self.eps, self.momentum, self._group = layer.eps, layer.momentum, group

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, …), unchanged in shape."""
        if not self.training:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        result, mean, variance = _Normalize.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self.eps, self._group
        )
        count = x.numel() // x.shape[1] * self._group.size
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        normalized: Tensor = result
        return normalized

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"eps={self.eps}, momentum={self.momentum}, over {self._group.size} ranks"


class _Normalize(torch.autograd.Function):
    """Result, mean and variance; only the result is differentiable."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        x_fp32 = x.to(weight.dtype)
        own_variance, own_mean = torch.var_mean(x_fp32, _all_but_channels(x), correction=0)
        means, variances = _gathered(torch.stack((own_mean, own_variance)), group).unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        inverse = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance)
        scale = weight * inverse
        result = x_fp32 * _along(scale, x) + _along(bias - mean * scale, x)
        return result.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        gradient = gradients[0].to(weight.dtype)
        normalized = (x.to(weight.dtype) - _along(mean, x)) * _along(inverse, x)
        dims = _all_but_channels(x)
        bias_gradient = gradient.sum(dims)
        weight_gradient = (gradient * normalized).sum(dims)
        means = torch.stack((bias_gradient, weight_gradient)) / (x.numel() // x.shape[1])
        ctx.group.all_reduce_mean(means).wait()
        of_gradient, of_product = means
        centred = gradient - _along(of_gradient, x) - normalized * _along(of_product, x)
        return (
            (centred * _along(weight * inverse, x)).to(x.dtype),
            weight_gradient,
            bias_gradient,
            None,
            None,
        )


def _gathered(own: Tensor, group: Group) -> Tensor:
    """All-gather of an array: (ranks, …)."""
    table = own.new_zeros((group.size, *own.shape))
    table[group.rank] = own
    group.all_reduce_mean(table).wait()
    return table.mul_(group.size)


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along(channels: Tensor, x: Tensor) -> Tensor:
    """(channels,) in a shape that broadcasts over `x`."""
    return channels.view(-1, *[1] * (x.dim() - 2))
