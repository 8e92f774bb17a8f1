r"""Tokens per second of cubemesh's fully sharded step and of the same step written by hand.

By hand is what TorchTitan does without its compiler: the network in plain `torch.nn`,
`fully_shard` for each block, the head not freed after its forward pass, weights gathered in bf16,
gradients reduced in fp32, the loss of fp32 logits, fused AdamW over the DTensors. Both train a
transformer of the catalogue on the same devices with the same batch, resident on the device, and
are interleaved in the same processes in windows of some steps.

    python benchmarks/sharded_peer.py --device cuda --devices 2 --network gpt2 --batch 8
    python benchmarks/sharded_peer.py --devices 2 --network gpt2 --layers 2 --hidden 64 \
        --vocabulary 256 --sequence-length 64 --precision fp32 --seconds 2

Throughput is the tokens of all ranks over the time from the first start to the last end of a
window; the interval of the ratio comes from resampling pairs of windows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # ranks are forked: no CUDA before

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.networks.graph import Network
from cubemesh.networks.transformer_sizes import Transformer, transformer
from cubemesh.networks.zoo.gpt2 import gpt2
from cubemesh.networks.zoo.llama import llama
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.statistics import median, median_interval
from stock_modules import GptBlock

OURS, HAND = "cubemesh", "by hand"
JOIN_S = 300.0
RATE = 1e-4


class LlamaBlock(nn.Module):
    """A block of a Llama-like decoder."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        width, self.heads, self.kv_heads = sizes.hidden, sizes.heads, sizes.kv_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, sizes.kv_width, bias=False)
        self.v = nn.Linear(width, sizes.kv_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, sizes.ffn, bias=False)
        self.up = nn.Linear(width, sizes.ffn, bias=False)
        self.down = nn.Linear(sizes.ffn, width, bias=False)
        self.base = sizes.rotary_base
        self.tables: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features), unchanged in shape."""
        batch, length, width = x.shape
        y = self.norm_1(x)
        q = self.q(y).view(batch, length, self.heads, -1)
        k = self.k(y).view(batch, length, self.kv_heads, -1)
        v = self.v(y).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        q, k = self._rotated(q).transpose(1, 2), self._rotated(k).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _rotated(self, x: Tensor) -> Tensor:
        if self.tables is None:
            size = x.shape[-1]
            rates = self.base ** (-torch.arange(0, size, 2, device=x.device).float() / size)
            angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), rates)
            self.tables = tuple(t(angles)[:, None, :].to(x.dtype) for t in (torch.cos, torch.sin))
        cosines, sines = self.tables
        one, other = x.chunk(2, -1)
        return torch.cat([one * cosines - other * sines, other * cosines + one * sines], -1)


class Decoder(nn.Module):
    """A decoder of either family, with tied embeddings where the table has them."""

    def __init__(self, sizes: Transformer, length: int, vocabulary: int) -> None:
        super().__init__()
        gpt = sizes.name.startswith("gpt2")
        self.embed = nn.Embedding(vocabulary, sizes.hidden)
        self.places = nn.Embedding(length, sizes.hidden) if gpt else None
        self.blocks = nn.ModuleList(
            GptBlock(sizes.hidden, sizes.heads) if gpt else LlamaBlock(sizes)
            for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.hidden) if gpt else nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.head = nn.Linear(sizes.hidden, vocabulary, bias=False)
        if sizes.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, length, vocabulary)."""
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def hand_step(args: Any, sizes: Transformer, batch: Batch, device: str) -> Callable[[], None]:
    """The step by hand; its batch is on the device."""
    kind = torch.device(device).type
    mesh = init_device_mesh(kind, (args.devices,))
    dtype = torch.bfloat16 if args.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    with torch.device("meta"):
        model = Decoder(sizes, args.sequence_length, args.vocabulary)
    if not sizes.tied:
        fully_shard(model.embed, mesh=mesh, mp_policy=policy)
    for block in model.blocks:
        last = sizes.tied and block is model.blocks[-1]
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not last)
    if not sizes.tied:
        fully_shard(
            [model.norm, model.head], mesh=mesh, mp_policy=policy, reshard_after_forward=False
        )
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    tokens, labels = (torch.from_numpy(a).to(device) for a in (batch.inputs[0], batch.labels))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()

    return step


def network_of(args: Any, sizes: Transformer) -> Network:
    """cubemesh's graph of the same network."""
    make = gpt2 if sizes.name.startswith("gpt2") else llama
    return make(sizes, args.sequence_length, args.vocabulary)


def our_step(
    args: Any, sizes: Transformer, batch: Batch, device: str, group: Any
) -> Callable[[], None]:
    """cubemesh's step; its batch is on the device."""
    network = network_of(args, sizes)
    work = TrainSteps(
        network=network.name, batch_per_device=args.batch, optimizer="adamw", learning_rate=RATE
    )
    program = build(
        BuildRequest(
            network=network,
            work=work,
            placement=Placement(devices=args.devices),
            program=ProgramSettings(precision=args.precision, sync=args.sync),
            sync=strategies.make(args.sync, group),
            device=device,
            threads=args.threads,
            group=group,
        )
    )
    program.load(network.draw(0))
    placed = program.place(batch)
    return lambda: program.train_step(placed)


def sizes_of(args: Any) -> Transformer:
    """The catalogue's sizes, with those that were given."""
    sizes = transformer(args.network)
    given = {n: getattr(args, n) for n in ("layers", "hidden") if getattr(args, n)}
    return replace(sizes, **given) if given else sizes


def work(config: str) -> None:
    """The life of a rank: build both, time them in turn, leave the windows in a file."""
    args = argparse.Namespace(**json.loads(config))
    local = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local}" if args.device == "cuda" else "cpu"
    if args.device == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(args.threads)
    group = join(device, JOIN_S)
    sizes = sizes_of(args)
    drawn = np.random.default_rng(group.rank).integers(
        0, args.vocabulary, (args.batch, args.sequence_length + 1)
    )
    batch = Batch(np.ascontiguousarray(drawn[:, :-1]), labels=np.ascontiguousarray(drawn[:, 1:]))
    steps = {OURS: our_step(args, sizes, batch, device, group)}
    memory = {OURS: _peak(device, steps[OURS])}
    steps[HAND] = hand_step(args, sizes, batch, device)
    memory["both"] = _peak(device, steps[HAND])
    found = {"windows": timed(args, steps, device, group), "memory_bytes": memory}
    Path(args.folder, f"{group.rank}.json").write_text(json.dumps(found))
    group.close()


def _peak(device: str, step: Callable[[], None]) -> int | None:
    """Peak of PyTorch's memory in a few steps; None on a CPU."""
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(3):
        step()
    return torch.cuda.max_memory_allocated(device) if cuda else None


def timed(
    args: Any, programs: dict[str, Callable[[], None]], device: str, group: Any
) -> dict[str, list[tuple[float, float, int]]]:
    """(start, seconds, steps) of every window of each program, in turn."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def window(step: Callable[[], None], steps: int) -> tuple[float, float, int]:
        dist.barrier()
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        return start, time.perf_counter() - start, steps

    steps = {}
    for name, step in programs.items():
        window(step, args.warm_steps)
        _, took, _ = window(step, args.warm_steps)
        most = args.seconds / len(programs) / args.windows
        steps[name] = group.broadcast_object(max(1, round(most / (took / args.warm_steps))))
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in programs}
    for _ in range(args.windows):
        for name, step in programs.items():
            found[name].append(window(step, steps[name]))
    return found


def step_times(reports: list[dict[str, Any]], name: str) -> list[float]:
    """Seconds of a step in each window, from the first rank's start to the last one's end."""
    ranks = [report["windows"][name] for report in reports]
    return [
        (max(start + took for start, took, _ in same) - min(start for start, *_ in same))
        / same[0][2]
        for same in zip(*ranks, strict=True)
    ]


def ratio_of(ours: list[float], hand: list[float]) -> tuple[float, float, float]:
    """Median of the ratio of throughputs over pairs of windows, with its 95 % interval."""
    pairs = np.array(hand) / np.array(ours)
    interval = median_interval(pairs)
    return float(np.median(pairs)), interval.low, interval.high


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="gpt2", help="a transformer of the catalogue")
    parser.add_argument("--sync", default="fully-sharded", help="cubemesh's strategy")
    parser.add_argument("--batch", type=int, default=8, help="sequences per device")
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--layers", type=int, help="other than the catalogue's")
    parser.add_argument("--hidden", type=int, help="other than the catalogue's")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="cores of each device on a CPU")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--windows", type=int, default=10, help="of each program")
    parser.add_argument("--warm-steps", type=int, default=3, help="of each before it is timed")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args(given)
    sizes = transformer(args.network)
    args.sequence_length = args.sequence_length or sizes.sequence_length
    args.vocabulary = args.vocabulary or sizes.vocabulary
    return args


def main(given: list[str] | None = None) -> int:
    """Measure and print; what comes out does not change the exit code."""
    args = arguments(given)
    if args.device == "cuda" and torch.cuda.device_count() < args.devices:
        print(f"absent: {args.devices} GPUs; there are {torch.cuda.device_count()}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        args.folder = folder
        if failed := launch(work, json.dumps(vars(args)), args.devices):
            print(f"ranks failed, with exit codes {failed}")
            return 1
        paths = [Path(folder, f"{rank}.json") for rank in range(args.devices)]
        reports = [json.loads(path.read_text()) for path in paths]
    times = {name: step_times(reports, name) for name in (OURS, HAND)}
    tokens = args.devices * args.batch * args.sequence_length
    for name, own in times.items():
        step_s = median(own)
        print(f"{name:9} {1e3 * step_s:9.2f} ms a step  {tokens / step_s:12,.0f} tokens/s")
    middle, low, high = ratio_of(times[OURS], times[HAND])
    print(f"ratio of throughputs, {OURS} over {HAND}: {middle:.3f} ({low:.3f} to {high:.3f})")
    held = reports[0]["memory_bytes"][OURS]
    if held is not None:
        print(f"peak memory of {OURS}: {held / 2**30:.2f} GiB")
    if args.json:
        plain = {"settings": vars(args), "torch": torch.__version__, "step_s": times}
        plain |= {"ratio": middle, "low": low, "high": high, "memory_bytes": held}
        Path(args.json).write_text(json.dumps(plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
