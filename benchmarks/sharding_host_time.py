"""Processor time that FSDP2's hooks cost a host, for each unit and each of its parameters, and that
DTensor costs it, for each divided layer and each change of layout.

Chains of small linear layers on the CPU, whose group has one real rank of two (PyTorch's `fake`
process group: its collectives return at once), so that what remains is Python and dispatch. The
time of the same chain without sharding is subtracted. On a GPU the launches of the copies and of
the collectives come on top.

    python benchmarks/sharding_host_time.py --units 12 --steps 40
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH = 8
Result = TypeVar("Result")


class Unit(nn.Module):
    """So many linear layers with a bias, one after the other: two parameters each."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width), unchanged in shape."""
        for layer in self.layers:
            x = layer(x)
        return x


def step_times(layers: int, units: int, steps: int, stage: int) -> tuple[float, float, float]:
    """Median processor seconds of (forward, backward, reading gradients and weights) of a step;
    stage 0 without sharding."""
    model = nn.Sequential(*(Unit(layers) for _ in range(units)))
    if stage:
        mesh = init_device_mesh("cpu", (2,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for unit in model:
            fully_shard(unit, mesh=mesh, reshard_after_forward=stage == 3, mp_policy=policy)
        fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    x = torch.randn(4, WIDTH)
    found: list[tuple[float, float, float]] = []
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        forward_s, loss = timed(lambda: model(x).float().sum())
        backward_s, _ = timed(loss.backward)
        read_s, _ = timed(lambda: [local(p.grad) for p in model.parameters()])
        found.append((forward_s, backward_s, read_s))
    forward, backward, read = zip(*found[steps // 4 :], strict=True)
    return median(forward), median(backward), median(read)


def local(array: Tensor | None) -> Tensor | None:
    """A rank's rows."""
    return array.to_local() if isinstance(array, DTensor) else array


def divided_times(layers: int, steps: int, divided: bool, moved: bool) -> tuple[float, float]:
    """Median processor seconds of (forward, backward) of a chain of linear layers and ReLUs,
    `divided` by columns as DTensors; with `moved` each result is gathered."""
    mesh = init_device_mesh("cpu", (2,))
    weights = [nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(layers)]
    biases = [nn.Parameter(torch.randn(WIDTH)) for _ in range(layers)]
    if divided:
        weights, biases = (
            [nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])) for p in arrays]
            for arrays in (weights, biases)
        )
    x: Tensor = torch.randn(4, WIDTH)
    if divided:
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)

    def chain() -> Tensor:
        total = torch.zeros(())
        y = x
        for weight, bias in zip(weights, biases, strict=True):
            out = torch.relu(nn.functional.linear(x if not moved else y, weight, bias))
            if moved and isinstance(out, DTensor):
                out = out.redistribute(placements=[Replicate()])
            y = out
            if not moved:
                total = total + (out.to_local() if isinstance(out, DTensor) else out).sum()
        return (y.to_local() if isinstance(y, DTensor) else y).sum() if moved else total

    found = []
    for _ in range(steps):
        for parameter in (*weights, *biases):
            parameter.grad = None
        forward_s, loss = timed(chain)
        backward_s, _ = timed(loss.backward)
        found.append((forward_s, backward_s))
    forward, backward = zip(*found[steps // 4 :], strict=True)
    return median(forward), median(backward)


def timed(call: Callable[[], Result]) -> tuple[float, Result]:
    """(processor seconds, result)."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def main() -> None:
    """Print the least-squares cost of a unit and of a parameter, by stage and pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    sizes = (1, 2, 4, 6, 8)
    found: dict[str, dict[str, float]] = {}
    plain = {n: step_times(n, args.units, args.steps, 0) for n in sizes}
    for stage in (2, 3):
        sharded = {n: step_times(n, args.units, args.steps, stage) for n in sizes}
        for number, name in enumerate(("forward", "backward", "reading")):
            added = [(sharded[n][number] - plain[n][number]) / args.units for n in sizes]
            line = np.stack([np.ones(len(sizes)), 2.0 * np.array(sizes)], 1)
            unit, parameter = np.linalg.lstsq(line, np.array(added), rcond=None)[0]
            found[f"ZeRO {stage}, {name}"] = {"unit": unit, "parameter": parameter}
    for moved in (False, True):
        plain_s = divided_times(args.units, args.steps, False, moved)
        own_s = divided_times(args.units, args.steps, True, moved)
        forward, backward = ((a - b) / args.units for a, b in zip(own_s, plain_s, strict=True))
        what = "DTensor, linear layer and ReLU" + (", gathered" if moved else "")
        found[what] = {"forward": forward, "backward": backward}
    for name, costs in found.items():
        print(f"{name}: " + ", ".join(f"{key} {1e6 * s:.1f} µs" for key, s in costs.items()))
    if args.json:
        Path(args.json).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
