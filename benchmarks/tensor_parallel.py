"""Tensor parallel training against the same step written with torch alone, and against data
parallel, interleaved in one pair of processes.

    python benchmarks/tensor_parallel.py --network gpt2 --batch 8
    python benchmarks/tensor_parallel.py --network llama3-1b --batch 1 --length 2048

The step by hand is that of TorchTitan: modules with `parallelize_module`, sequence parallel between
the divided layers, loss_parallel, autocast, and AdamW over DTensors. All have the same global batch
and print tokens/s; `ratio` is cubemesh over by hand, of the median of the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.networks.transformer_sizes import Transformer, transformer
from cubemesh.networks.zoo.gpt2 import gpt2
from cubemesh.networks.zoo.llama import llama
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps


class Attention(nn.Module):
    """Causal attention; a matrix each for queries, keys and values."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        hidden, kv = sizes.hidden, sizes.kv_width
        self.size, self.rotary, self.base = hidden // sizes.heads, sizes.gated, sizes.rotary_base
        self.wq = nn.Linear(hidden, hidden, bias=sizes.biases)
        self.wk = nn.Linear(hidden, kv, bias=sizes.biases)
        self.wv = nn.Linear(hidden, kv, bias=sizes.biases)
        self.wo = nn.Linear(hidden, hidden, bias=sizes.biases)
        self.gqa = sizes.heads != sizes.kv_heads

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """See `nn.Module`."""
        q, k, v = (
            w(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        if self.rotary:
            q, k = rotated(q, *tables), rotated(k, *tables)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.gqa)
        out: Tensor = self.wo(y.transpose(1, 2).flatten(2))
        return out


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x` with rotary positions."""
    one, other = x.chunk(2, -1)
    cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
    return torch.cat([one * cosines - other * sines, other * cosines + one * sines], -1)


class FeedForward(nn.Module):
    """Two products, or three where gated."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.gated = sizes.gated
        self.w1 = nn.Linear(sizes.hidden, sizes.ffn, bias=sizes.biases)
        self.w2 = nn.Linear(sizes.ffn, sizes.hidden, bias=sizes.biases)
        if sizes.gated:
            self.w3 = nn.Linear(sizes.hidden, sizes.ffn, bias=sizes.biases)

    def forward(self, x: Tensor) -> Tensor:
        """See `nn.Module`."""
        y = (
            F.silu(self.w1(x)) * self.w3(x)
            if self.gated
            else F.gelu(self.w1(x), approximate="tanh")
        )
        out: Tensor = self.w2(y)
        return out


class Block(nn.Module):
    """A layer."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = norm(sizes), norm(sizes)
        self.attention, self.feed_forward = Attention(sizes), FeedForward(sizes)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """See `nn.Module`."""
        x = x + self.attention(self.attention_norm(x), tables)
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    """GPT-2 or a Llama-like network, as written by hand."""

    def __init__(self, sizes: Transformer, length: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.pos = nn.Embedding(length, sizes.hidden) if sizes.positions else None
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = norm(sizes)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        half = sizes.hidden // sizes.heads // 2
        angles = torch.arange(length)[:, None] * sizes.rotary_base ** (-torch.arange(half) / half)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """See `nn.Module`."""
        x = self.tok(tokens)
        if self.pos is not None:
            x = x + self.pos(torch.arange(tokens.shape[1], device=tokens.device)[None])
        for layer in self.layers:
            x = layer(x, (self.cosines, self.sines))
        out: Tensor = self.output(self.norm(x))
        return out


def norm(sizes: Transformer) -> nn.Module:
    """The norm of a family."""
    if sizes.biases:
        return nn.LayerNorm(sizes.hidden)
    return nn.RMSNorm(sizes.hidden, eps=1e-5)


def by_hand(sizes: Transformer, length: int, device: str, ranks: int) -> Callable[..., None]:
    """A tensor parallel step with torch alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    kind = torch.device(device).type
    mesh = init_device_mesh(kind, (ranks,))
    with torch.device(device):
        model = Model(sizes, length)
    embedding = {"input_layouts": Replicate(), "output_layouts": Shard(1)}
    plan: dict[str, Any] = {
        "tok": RowwiseParallel(**embedding),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sizes.positions:
        plan["pos"] = RowwiseParallel(**embedding)
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        plan = {
            "attention_norm": SequenceParallel(),
            "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        columns = [f"attention.{w}" for w in ("wq", "wk", "wv")] + ["feed_forward.w1"]
        columns += ["feed_forward.w3"] * sizes.gated
        plan |= {name: ColwiseParallel() for name in columns}
        parallelize_module(layer, mesh, plan)
    if sizes.tied:
        model.output.weight = model.tok.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with loss_parallel():
            with torch.autocast(kind, torch.bfloat16):
                loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
            loss.backward()
        optimizer.step()

    return step


def by_cubemesh(options: Any, group: Any, device: str, sync_name: str) -> Any:
    """The program of a strategy."""
    sizes = transformer(options.network)
    settings = ProgramSettings(precision="bf16", sync=sync_name)
    sync = strategies.make(sync_name, group)
    sync.configure(settings)
    make = llama if sizes.gated else gpt2
    network = make(sizes, options.length, sizes.vocabulary)
    work = TrainSteps(
        network=sizes.name,
        batch_per_device=options.batch,
        optimizer="adamw",
        learning_rate=1e-4,
        momentum=0.0,
    )
    program = build(
        BuildRequest(
            network=network,
            work=work,
            placement=Placement(device=options.device, devices=group.size),
            program=settings,
            sync=sync,
            device=device,
            threads=1,
            group=group,
        )
    )
    with torch.no_grad():
        for parameter in program._built.parameters.values():
            parameter.normal_(0.0, 0.02)
    return program


def rank(words: str) -> None:
    """What each process does."""
    options = argparse.Namespace(**json.loads(words))
    import os

    cuda = options.device == "cuda"
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
    group = join(device, 120.0)
    sizes = transformer(options.network)
    whole = options.batch * group.size
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (whole, options.length))
    on_device = torch.from_numpy(tokens).to(device)
    steps: dict[str, Callable[[], None]] = {}
    for name in options.programs:
        if name == "by hand":
            step = by_hand(sizes, options.length, device, group.size)
            steps[name] = lambda step=step: step(on_device, on_device)  # type: ignore[misc]
            continue
        program = by_cubemesh(options, group, device, name)
        part = slice(None)
        if name == "all-reduce":
            part = slice(group.rank * options.batch, (group.rank + 1) * options.batch)
        placed = program.place(Batch(tokens[part], labels=tokens[part]))
        steps[name] = lambda p=program, placed=placed: p.train_step(placed)  # type: ignore[misc]

    def turn(step: Callable[[], None], count: int) -> float:
        group.barrier()
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    memory, counts = {}, {}
    for name, step in steps.items():
        turn(step, 2)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        once = turn(step, 2)
        memory[name] = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
        counts[name] = group.broadcast_object(max(1, round(options.turn_s / once)))
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.turns):
        for name, step in steps.items():
            found[name].append(turn(step, counts[name]))
    if group.rank == 0:
        each = {name: statistics.median(times) for name, times in found.items()}
        for name, step_s in each.items():
            spread = (max(found[name]) - min(found[name])) / step_s
            print(
                f"{sizes.name:12} {name:16} {whole * options.length / step_s:12,.0f} tokens/s  "
                f"{1e3 * step_s:8.2f} ms/step  spread {100 * spread:.1f} %  "
                f"peak with all programs {memory[name]:.1f} GiB",
                flush=True,
            )
        mine = each.get("tensor-parallel")
        for other in ("by hand", "all-reduce"):
            if mine and other in each:
                ratios = [
                    b / a for a, b in zip(found["tensor-parallel"], found[other], strict=True)
                ]
                print(
                    f"{sizes.name:12} ratio tensor-parallel / {other}: {each[other] / mine:.3f} "
                    f"({min(ratios):.3f} to {max(ratios):.3f} of {len(ratios)} turns)",
                    flush=True,
                )
    group.close()


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="gpt2", help="name, or sizes as of predict")
    parser.add_argument("--batch", type=int, default=8, help="per device")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--turn-s", type=float, default=1.0)
    names = ["tensor-parallel", "by hand", "all-reduce"]
    parser.add_argument("--programs", nargs="+", default=names, choices=names)
    options = parser.parse_args()
    failed = launch(rank, json.dumps(vars(options)), options.ranks)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
