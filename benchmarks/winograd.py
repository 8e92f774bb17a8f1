"""Speedup of Winograd convolution over oneDNN on this CPU, by layer and pass.

Every 3×3 convolution with a stride of 1 in a network, one of each shape, in fp32 and channels-last:
the result, the input gradient and the weight gradient, by the kernels of `kernels/cpu/winograd.cpp`
and by PyTorch (oneDNN), interleaved. The ratio is PyTorch's time over the kernels', the median over
the rounds with its bootstrap interval. With one thread, processor time. GFLOP/s count a direct
convolution's products in both, so Winograd's may exceed the machine's peak.

    python benchmarks/winograd.py --network resnet-50 --batch 16 --threads 1 --json winograd.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from cubemesh import networks
from cubemesh.cpp_compiler import missing_compiler
from cubemesh.kernels.cpu import winograd
from cubemesh.kernels.cpu.allocator import keep_freed_memory
from cubemesh.kernels.fused.conv import PASSES, FusedConv
from cubemesh.networks.layers import Convolution
from cubemesh.statistics import median, median_interval

Case = tuple[int, int, int, int, int]
"""Channels, height, width, filters, padding."""


def cases(name: str) -> Counter[Case]:
    """Each shape → how many layers of a network have it."""
    network = networks.build(name)
    shapes = {node.name: node.shape for node in network.nodes}
    shapes |= {given.name: given.shape for given in network.inputs}
    found: Counter[Case] = Counter()
    for node in network.nodes:
        layer, shape = node.layer, shapes[node.inputs[0]]
        if isinstance(layer, Convolution):
            with torch.device("meta"):
                conv = nn.Conv2d(shape[0], layer.filters, layer.kernel, layer.stride,
                                 layer.padding, groups=layer.groups)  # fmt: skip
            if winograd.supports(conv):
                assert not isinstance(conv.padding, str)
                found[(*shape, layer.filters, conv.padding[0])] += 1
    return found


def runs(case: Case, batch: int) -> dict[str, list[Callable[[], object]]]:
    """Pass → PyTorch's implementation, and the kernels'."""
    channels, height, width, filters, padding = case
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, filters, 3, padding=padding, bias=False)
    conv.to(memory_format=torch.channels_last)
    x = torch.rand(batch, channels, height, width).contiguous(memory_format=torch.channels_last)
    found: dict[str, list[Callable[[], object]]] = {name: [] for name in PASSES}
    for own in (frozenset(), frozenset(PASSES)):
        op = FusedConv(conv, relu=False)
        op.alternative_passes = own
        grad_output = op.result(x)
        found["result"].append(partial(op.result, x))
        found["input"].append(partial(op.gradients, grad_output, x, (True, False, False)))
        found["weight"].append(partial(op.gradients, grad_output, x, (False, True, False)))
    return found


def in_turn(both: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of each in each round, after one that does not count."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for run, times in zip(both, seconds, strict=True):
            start = clock()
            run()
            times.append(clock() - start)
    return [times[1:] for times in seconds]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args()
    if reason := missing_compiler():
        print(reason)
        return 2
    keep_freed_memory()  # as every program does
    torch.set_num_threads(args.threads)
    rows = []
    sums = [0.0, 0.0]
    for case, count in cases(args.network).items():
        channels, height, width, filters, padding = case
        cells = (height + 2 * padding - 2) * (width + 2 * padding - 2)
        gflop = 2e-9 * args.batch * cells * 9 * channels * filters
        for name, both in runs(case, args.batch).items():
            with torch.no_grad():
                own, ours = in_turn(both, args.rounds)
            ratios = [a / b for a, b in zip(own, ours, strict=True)]
            interval = median_interval(ratios)
            ratio, medians = median(ratios), [median(own), median(ours)]
            sums = [s + count * m for s, m in zip(sums, medians, strict=True)]
            print(
                f"{count} × {channels:4} → {filters:4}, {height:3}², {name:6}  "
                f"PyTorch {1e3 * medians[0]:8.2f} ms ({gflop / medians[0]:4.0f} GFLOP/s), "
                f"Winograd {1e3 * medians[1]:8.2f} ({gflop / medians[1]:4.0f}), "
                f"{ratio:.2f} ({interval.low:.2f} to {interval.high:.2f})",
                flush=True,
            )
            rows.append({"case": case, "count": count, "pass": name, "own_s": own, "ours_s": ours})
    print(f"per step: PyTorch {1e3 * sums[0]:.0f} ms, Winograd {1e3 * sums[1]:.0f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, **vars(args), "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
