"""Time of fused batch normalization against its lower bound by memory bandwidth.

Every fusion of a network, one of each shape, in each launch that fits on the GPU, with PyTorch's
own operations in eager mode and the lower bound: each array read or written once, at the rate of a
large copy in the same process. Values are random; arrays that fit into the cache are timed from
there.

    python benchmarks/fused_kernels.py --network resnet-50 --batch 256 --json kernels.json

Without a GPU or Triton it prints `absent` and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from cubemesh import networks
from cubemesh.kernels.cuda_events import time_ms
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.networks.fusion import NormFusion, fused_steps, reads

COPY_BYTES = 1 << 30
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

Case = tuple[tuple[int, int, int, int], bool, bool, int]
"""(shape, add, relu, readers: 1 or 2)."""


def cases(network: str, batch: int) -> dict[Case, int]:
    """Each distinct fusion of `network` → its count."""
    graph = networks.build(network)
    steps = fused_steps(graph)
    read = reads(graph, steps)
    found: dict[Case, int] = {}
    for step in steps:
        if isinstance(step, NormFusion):
            channels, height, width = step.norm.shape
            readers = min(2, read[step.last.name])
            case = (
                (batch, channels, height, width),
                step.residual is not None,
                step.relu,
                readers,
            )
            found[case] = found.get(case, 0) + 1
    return found


def floor_bytes(case: Case, size: int) -> tuple[float, float]:
    """(forward, backward): fewest bytes read and written, for values of `size` bytes."""
    (batch, channels, height, width), add, relu, readers = case
    values = batch * channels * height * width
    bits = values / 8 if add and relu else 0
    forward = values * size * (3 if add else 2) + bits
    backward = values * size * (readers + 2 + (1 if add else 0)) + bits
    return forward, backward


def prepared(case: Case, dtype: torch.dtype) -> tuple[FusedBatchNorm, torch.Tensor]:
    """The operation of a case, and an array for it."""
    shape, add, relu, readers = case
    norm = nn.BatchNorm2d(shape[1], device="cuda")
    norm.num_batches_tracked = None
    op = FusedBatchNorm(norm, add=add, relu=relu, readers=readers)
    x = torch.empty(shape, dtype=dtype, device="cuda").to(memory_format=torch.channels_last)
    return op, x


def copy_bytes_per_s() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / time_ms(lambda: torch.add(source, 1, out=target)) * 1e3


def compile_share(given: tuple[list[Case], str, int, int]) -> int:
    """Compile every `of`-th launch, from `first` on, into Triton's cache; how many."""
    from cubemesh.kernels.triton.batch_norm import autotune

    found, dtype, first, of = given
    done = 0
    for case in found:
        op, x = prepared(case, DTYPES[dtype])
        residual, gradients = autotune.example_inputs(op, x)
        saved = autotune.saved_for_backward(op, x, residual)
        calls = autotune.candidate_calls(op, x, residual, gradients, saved)
        for number, (_, _, call) in enumerate(calls):
            if number % of == first:
                call.fits(x.device)
                done += 1
        torch.cuda.empty_cache()
    return done


def main() -> int:
    """Time every launch and print the fastest of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--compilers", type=int, default=0, help="processes that compile first")
    parser.add_argument(
        "--every", action="store_true", help="print every launch, not only the fastest"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args()
    if not torch.cuda.is_available() or find_spec("triton") is None:
        print("absent: a GPU that PyTorch can use, and Triton")
        return 2
    from cubemesh.kernels.triton.batch_norm.autotune import fastest_plan, time_candidates
    from cubemesh.kernels.triton.batch_norm.launch import describe

    found = cases(args.network, args.batch)
    if args.compilers:
        shares = [(list(found), args.dtype, i, args.compilers) for i in range(args.compilers)]
        with ProcessPoolExecutor(args.compilers, mp_context=get_context("spawn")) as pool:
            print(f"compiled: {sum(pool.map(compile_share, shares))}")
    rate = copy_bytes_per_s()
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: copy {rate / 1e9:.0f} GB/s"
    )
    rows: list[dict[str, Any]] = []
    sums = dict.fromkeys(("floor", "own", "best"), 0.0)
    for case, count in found.items():
        op, x = prepared(case, DTYPES[args.dtype])
        for which, tried, moved in zip(
            ("forward", "backward"),
            time_candidates(op, x),
            floor_bytes(case, x.element_size()),
            strict=True,
        ):
            floor_ms = moved / rate * 1e3
            own_ms = tried[0].ms
            ours = sorted(tried[1:], key=lambda t: (t.piece, t.ms))
            plan, best_ms = fastest_plan(tried) or ((), own_ms)
            for key, ms in (("floor", floor_ms), ("own", own_ms), ("best", min(own_ms, best_ms))):
                sums[key] += count * ms
            print(
                f"{count} × {case[0]!s:22} {'add' if case[1] else '   '} "
                f"{'relu' if case[2] else '    '} {case[3]} {which:8} floor {floor_ms:7.4f} ms, "
                f"own {own_ms:7.4f}, best {best_ms:7.4f} {describe(plan)}"
            )
            for one in ours if args.every else []:
                print(f"    {one.piece:5} {one.ms:7.4f} {one.launch}")
            tries = [{"piece": t.piece, "launch": str(t.launch), "ms": t.ms} for t in tried]
            rows.append({"case": case, "count": count, "pass": which, "floor_ms": floor_ms,
                         "tried": tries})  # fmt: skip
        del op, x
        torch.cuda.empty_cache()
    print("per step: " + ", ".join(f"{key} {ms:.3f} ms" for key, ms in sums.items()))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"copy_bytes_per_s": rate, **vars(args), "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
