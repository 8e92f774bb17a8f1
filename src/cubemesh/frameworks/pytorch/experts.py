"""Mixture of experts in PyTorch: rows sorted by expert, and one grouped product for all experts.

    scores ──top k──▶ (position, expert) pairs ──sorted by expert──▶ rows of x
    gate, up: grouped products; silu(gate) · up; down: grouped product ──▶ rows of results
    y of a position: its k results, weighted by the softmax of their scores, added

A grouped product multiplies the rows of each expert by that expert's matrix. In bf16 on GPUs of
compute capability 9.0 and later it is `torch._grouped_mm`, one kernel that reads the borders of the
experts on the device; elsewhere it is one product an expert, for which the host reads the borders:
such a step cannot be captured as a CUDA graph. Under torch.compile the product is an operator of
its own (`cubemesh::grouped_product`), since the number of rows of an expert is known in the step
alone. Outside it is a plain autograd function: to call a custom operator imports the compiler.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.networks import layers

_GROUPED_CAPABILITY = (9, 0)
_ALIGNED_BYTES = 16
"""Of each row of the operands of `torch._grouped_mm`."""


class ExpertMixture(nn.Module):
    """The experts of a layer. Weights are (experts, out, in)."""

    gate_weight: Tensor
    up_weight: Tensor
    down_weight: Tensor

    def __init__(self, layer: layers.Experts, shape: layers.Shape) -> None:
        super().__init__()
        for role, spec in layer.parameters(shape, (shape[0], layer.experts)).items():
            self.register_parameter(role, nn.Parameter(torch.empty(spec.shape)))
        self.experts, self.active = layer.experts, layer.active

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        """(batch, length, features), (batch, length, experts) → (batch, length, features)."""
        dtype = _product_type(x)
        given, active = x.flatten(0, -2).to(dtype), self.active
        chosen_scores, chosen = scores.flatten(0, -2).topk(active, -1)
        shares = F.softmax(chosen_scores, -1, dtype=_at_least_float32(x.dtype)).to(dtype)
        order = chosen.flatten().argsort(stable=True)
        place = torch.empty_like(order).scatter_(
            0, order, torch.arange(len(order), device=order.device)
        )
        ends = expert_counts(chosen, self.experts).cumsum(0).to(torch.int32)
        rows = given.index_select(0, order // active)
        gate, up = (
            _grouped_product(rows, weight.to(dtype), ends)
            for weight in (self.gate_weight, self.up_weight)
        )
        results = _grouped_product(F.silu(gate) * up, self.down_weight.to(dtype), ends)
        of_position = results.index_select(0, place).view(-1, active, x.shape[-1])
        return (of_position * shares.unsqueeze(-1)).sum(1).view(x.shape)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        _, ffn, width = self.gate_weight.shape
        return f"{self.experts} of {width}×{ffn}, active={self.active}"


class BalanceLoss(nn.Module):
    """The load-balancing loss of each position."""

    def __init__(self, active: int) -> None:
        super().__init__()
        self.active = active

    def forward(self, *scores: Tensor) -> Tensor:
        """(batch, length, experts) of each router → (batch, length, 1)."""
        total: Tensor | None = None
        for of_router in scores:
            experts = of_router.shape[-1]
            chosen = of_router.detach().topk(self.active, -1).indices
            full = _at_least_float32(of_router.dtype)
            shares = expert_counts(chosen, experts).to(full) / chosen.numel()
            probabilities = F.softmax(of_router, -1, dtype=full)
            loss = experts * (probabilities * shares).sum(-1, keepdim=True)
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"active={self.active}"


def expert_counts(chosen: Tensor, experts: int) -> Tensor:
    """How often each expert was chosen, (experts,)."""
    numbers = torch.arange(experts, device=chosen.device)
    return (chosen.flatten()[:, None] == numbers).sum(0)


def check_capture(request: BuildRequest) -> None:
    """Unsupported if a CUDA graph is to capture experts whose borders the host reads."""
    mixes = any(isinstance(node.layer, layers.Experts) for node in request.network.nodes)
    if not mixes or not request.device.startswith("cuda"):
        return
    if request.program.precision != "bf16" or not has_grouped_kernel(
        request.device, torch.bfloat16
    ):
        raise Unsupported(
            f"{request.network.name} has experts, and a CUDA graph of them needs bf16 and a GPU of "
            f"compute capability 9.0 or later; precision={request.program.precision} on "
            f"{request.device}. Set precision=bf16, or framework=pytorch."
        )


def has_grouped_kernel(device: str, dtype: torch.dtype) -> bool:
    """Whether the grouped product is one kernel, without waiting for the host."""
    kind = torch.device(device)
    return (
        kind.type == "cuda"
        and dtype == torch.bfloat16
        and torch.cuda.get_device_capability(kind) >= _GROUPED_CAPABILITY
        and hasattr(torch, "_grouped_mm")
    )


def _product_type(x: Tensor) -> torch.dtype:
    """The type of products, of autocast where it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """(rows, in), (experts, out, in), ends of the experts' rows → (rows, out)."""
    if torch.compiler.is_compiling():
        product: Tensor = torch.ops.cubemesh.grouped_product(rows, weight, ends)
        return product
    result: Tensor = _GroupedProduct.apply(rows, weight, ends)  # type: ignore[no-untyped-call]
    return result


def _forward(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if _uses_kernel(rows, weight):
        return torch._grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    result = rows.new_empty(len(rows), weight.shape[1])
    for expert, (begin, end) in enumerate(_borders(ends)):
        torch.mm(rows[begin:end], weight[expert].t(), out=result[begin:end])
    return result


def _backward(
    grad_output: Tensor, rows: Tensor, weight: Tensor, ends: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of rows and weight."""
    grad_output = grad_output.contiguous()
    if _uses_kernel(rows, weight):
        return (
            torch._grouped_mm(grad_output, weight, offs=ends),
            torch._grouped_mm(grad_output.t(), rows, offs=ends),
        )
    of_rows, of_weight = torch.empty_like(rows), torch.empty_like(weight)
    for expert, (begin, end) in enumerate(_borders(ends)):
        torch.mm(grad_output[begin:end], weight[expert], out=of_rows[begin:end])
        torch.mm(grad_output[begin:end].t(), rows[begin:end], out=of_weight[expert])
    return of_rows, of_weight


def _uses_kernel(rows: Tensor, weight: Tensor) -> bool:
    aligned = all(n * rows.itemsize % _ALIGNED_BYTES == 0 for n in weight.shape[1:])
    return aligned and has_grouped_kernel(str(rows.device), rows.dtype)


def _borders(ends: Tensor) -> list[tuple[int, int]]:
    """Begin and end of each expert's rows; the host waits for them."""
    found = ends.tolist()
    return list(zip([0, *found[:-1]], found, strict=True))


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, ends)
        return _forward(rows, weight, ends)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        return (*_backward(grad_output, *ctx.saved_tensors), None)


_OPERATOR = torch.library.custom_op("cubemesh::grouped_product", _forward, mutates_args=())
_GRADIENTS = torch.library.custom_op(
    "cubemesh::grouped_product_backward", _backward, mutates_args=()
)


@_OPERATOR.register_fake
def _(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(len(rows), weight.shape[1])


@_GRADIENTS.register_fake
def _(grad_output: Tensor, rows: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _operator_gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weight, ends = ctx.saved_tensors
    return (*torch.ops.cubemesh.grouped_product_backward(grad_output, rows, weight, ends), None)


_OPERATOR.register_autograd(_operator_gradients, setup_context=_save)
