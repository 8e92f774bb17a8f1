"""Stock PyTorch modules of the zoo's networks, as peers of cubemesh's programs.

    torchvision's               convolutional networks and vision transformers
    by hand                     GPT-2 and Llama, with PyTorch's attention, as tutorials write them
    the graph as a module       the others: PyTorch's own layers (cuDNN's LSTM, GRU and RNN; its
                                attention) in the order of the graph, without cubemesh's kernels

Each computes what the network of the same name does, and its number of parameters is checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh import networks
from cubemesh.batches import PADDING
from cubemesh.networks.graph import Network
from cubemesh.networks.transformer_sizes import TRANSFORMERS, Transformer

TORCHVISION: dict[str, tuple[str, dict[str, Any]]] = {
    "alexnet": ("alexnet", {}),
    "vgg11": ("vgg11", {}),
    "vgg16": ("vgg16", {}),
    "vgg19": ("vgg19", {}),
    "googlenet": ("googlenet", {"aux_logits": False, "init_weights": True}),
    "resnet-18": ("resnet18", {}),
    "resnet-34": ("resnet34", {}),
    "resnet-50": ("resnet50", {}),
    "resnet-101": ("resnet101", {}),
    "resnet-152": ("resnet152", {}),
    "efficientnet-b0": ("efficientnet_b0", {}),
    "convnext-t": ("convnext_tiny", {}),
    "vit-b16": ("vit_b_16", {}),
    "vit-l16": ("vit_l_16", {}),
}
"""cubemesh's name → torchvision's, and its arguments."""
MULTIPLE = 64
"""A padded vocabulary is a multiple of it."""
Loss = Callable[..., Tensor]
"""(inputs and labels) → mean cross-entropy."""


def padded_vocabulary(network: Network) -> int:
    """The classes of a network for sequences, in whole multiples of `MULTIPLE`."""
    return -(-(network.targets[0].classes or 0) // MULTIPLE) * MULTIPLE


def stock_loss(network: Network, vocabulary: int | None = None) -> tuple[nn.Module, Loss]:
    """The stock module of a network and its loss as a function, which is compiled as one.
    `vocabulary`: another number of classes."""
    name, size = network.name, network.targets[0].classes or 0
    if name in TORCHVISION or name == "vit-s16":
        module = _from_torchvision(name)
    elif name.startswith(("gpt2", "llama")):
        made = Gpt2 if name.startswith("gpt2") else Llama
        module = made(TRANSFORMERS[name], network.inputs[0].shape[0], vocabulary or size)
    else:
        return _from_graph(network, vocabulary)
    found = sum(parameter.numel() for parameter in module.parameters())
    if vocabulary is None and found != network.parameter_count:
        raise RuntimeError(f"{name} has {network.parameter_count} parameters, its peer {found}")
    return module, partial(_cross_entropy, module)


def _cross_entropy(module: nn.Module, *placed: Tensor) -> Tensor:
    *inputs, labels = placed
    return F.cross_entropy(module(*inputs).flatten(0, -2), labels.flatten())


def _from_torchvision(name: str) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    if name == "vit-s16":
        made: nn.Module = models.VisionTransformer(
            image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536
        )
        return made
    function, more = TORCHVISION[name]
    found: nn.Module = getattr(models, function)(weights=None, **more)
    return found


def _from_graph(network: Network, vocabulary: int | None) -> tuple[nn.Module, Loss]:
    from cubemesh.frameworks.pytorch.module import build_modules

    if vocabulary is not None:
        length = network.inputs[0].shape[0]
        network = networks.build(network.name, sequence_length=length, vocabulary=vocabulary)
    built = build_modules(network, overwrite=False)
    built.load(network.draw(0))
    weights = [head.weight for head in network.heads]

    def loss_of(*placed: Tensor) -> Tensor:
        *inputs, labels = placed
        scores: Sequence[Tensor] = built.training(*inputs)
        losses = [
            weight * F.cross_entropy(own.flatten(0, -2), labels.flatten(), ignore_index=PADDING)
            for weight, own in zip(weights, scores, strict=True)
        ]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    return built.training, loss_of


def _start(module: nn.Module) -> None:
    for array in module.parameters():
        if array.ndim > 1:
            nn.init.normal_(array, std=0.02)


class GptBlock(nn.Module):
    """A block of GPT-2: attention and perceptron, each behind a layer normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width), unchanged in shape."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attn(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2, its head tied to the embedding."""

    def __init__(self, sizes: Transformer, length: int, vocabulary: int) -> None:
        super().__init__()
        width = sizes.hidden
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, sizes.heads) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(width)
        _start(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, length, vocabulary)."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class LlamaBlock(nn.Module):
    """A block of Llama: grouped queries with rotary positions, and a gated perceptron."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        width, self.size = sizes.hidden, sizes.hidden // sizes.heads
        linear = partial(nn.Linear, bias=False)
        self.norm_1, self.norm_2 = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.q, self.o = linear(width, width), linear(width, width)
        self.k, self.v = (linear(width, sizes.kv_width) for _ in range(2))
        self.gate, self.up = (linear(width, sizes.ffn) for _ in range(2))
        self.down = linear(sizes.ffn, width)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """(batch, length, width), unchanged in shape; tables (length, size of a head)."""
        batch, length, width = x.shape
        y = self.norm_1(x)
        q, k, v = (
            part(y).view(batch, length, -1, self.size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = (_rotated(part, cosines, sines) for part in (q, k))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    turned = torch.cat([-other, one], -1)
    return x * cosines.to(x.dtype) + turned * sines.to(x.dtype)


class Llama(nn.Module):
    """A Llama-like decoder, its head tied to the embedding where the released one's is."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, sizes: Transformer, length: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList(LlamaBlock(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.head = nn.Linear(sizes.hidden, vocabulary, bias=False)
        if sizes.tied:
            self.head.weight = self.embed.weight
        size = sizes.hidden // sizes.heads
        rates = sizes.rotary_base ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length), torch.cat([rates, rates]))
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)
        _start(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, length, vocabulary)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        scores: Tensor = self.head(self.norm(x))
        return scores
