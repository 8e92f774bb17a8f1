"""Speedup of one-launch batch normalization and of 1×1 convolutions that compute its statistics.

Interleaved A/B in one process on one GPU: each variant against the same program without it.

    one-launch    batch normalization in one launch where that is faster, against two launches only
    conv-stats    1×1 convolutions that compute the sums of the batch normalization after them
                  where that is faster, against convolutions that do not

Per step: `pytorch-captured` trains the network with and without the variant (ab_comparison.py,
several instances of each). Per shape: the fastest kernels of each, replayed by CUDA graphs in turn.
A ratio is time without / time with, more than 1: the variant is faster; 95 % intervals.

    python benchmarks/kernel_variants.py --device cuda:0 --json variants.json

Without a GPU or Triton it prints `absent` and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from ab_comparison import Side, compare, random_batch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.kernels.triton import conv1x1_bn_stats
from cubemesh.kernels.triton.autotune import GpuAutotuner
from cubemesh.kernels.triton.batch_norm import autotune
from cubemesh.kernels.triton.batch_norm.autotune import Timing
from cubemesh.kernels.triton.batch_norm.launch import describe
from cubemesh.networks.fusion import NormFusion, fused_steps, reads
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Convolution
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.statistics import median, median_interval
from fused_kernels import Case, cases, compile_share, prepared

FRAMEWORK = "pytorch-captured"
VARIANTS = ("one-launch", "conv-stats")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CAPTURED_AFTER = 3
"""Steps until a program replays."""
CALLS, ROUNDS = 5, 20
"""Of a kernel in a graph; replays of each graph."""

Timings = tuple[list[Timing], list[Timing]]
Run = Callable[[], object]


class Tuner:
    """Times each candidate once and shares the timings among all programs."""

    def __init__(self) -> None:
        self.time_candidates = autotune.time_candidates
        self.faster_with_stats = conv1x1_bn_stats.faster_with_stats
        self._timings: dict[object, Timings] = {}
        self._convs: dict[object, Any] = {}

    def timings(self, op: Any, x: torch.Tensor, without: str = "") -> Timings:
        """See `time_candidates`; without one launch if that is the variant to leave out."""
        key = (x.shape, x.dtype, op.add, op.relu, min(op.readers, 2))
        if key not in self._timings:
            self._timings[key] = self.time_candidates(op, x)
        forward, backward = self._timings[key]
        if without != "one-launch":
            return forward, backward
        return two_launches(forward), two_launches(backward)

    def conv(self, conv: Any, op: Any, own: Any, x: torch.Tensor) -> Any:
        """See `faster_with_stats`."""
        key = (x.shape, own.shape, own.plans, op.add, op.relu)
        if key not in self._convs:
            self._convs[key] = self.faster_with_stats(conv, op, own, x)
        return self._convs[key]

    @contextmanager
    def tuning(self, without: str) -> Iterator[None]:
        """Within it programs are tuned without a variant ("" for none)."""
        supports = conv1x1_bn_stats.supports
        if without == "conv-stats":
            supports = no_layer
        with (
            patch.object(autotune, "time_candidates", partial(self.timings, without=without)),
            patch.object(conv1x1_bn_stats, "faster_with_stats", self.conv),
            patch.object(conv1x1_bn_stats, "supports", supports),
            patch.object(GpuAutotuner, "_kernels_of_shape", {}),
            patch.object(GpuAutotuner, "_convs_of_shape", {}),
        ):
            yield


def two_launches(timings: Sequence[Timing]) -> list[Timing]:
    """Without those of one launch."""
    return [t for t in timings if t.piece != "one-launch"]


def no_layer(conv: nn.Module) -> bool:
    """Supports none."""
    return False


def convs(network: str, batch: int) -> list[tuple[tuple[int, ...], Case]]:
    """(input shape, case of the batch normalization) of each distinct 1×1 convolution of stride 1
    whose only reader is a batch normalization."""
    graph = networks.build(network)
    steps = fused_steps(graph)
    read = reads(graph, steps)
    shapes = {node.name: node.shape for node in graph.nodes}
    shapes |= {given.name: given.shape for given in graph.inputs}
    producers = {step.name: step for step in steps if isinstance(step, Node)}
    found = {}
    for step in steps:
        if not isinstance(step, NormFusion):
            continue
        node = producers.get(step.norm.inputs[0])
        if node is None or read[node.name] != 1 or not isinstance(node.layer, Convolution):
            continue
        if tuple(node.layer.kernel) != (1, 1) or tuple(node.layer.stride) != (1, 1):
            continue
        readers = min(2, read[step.last.name])
        case = ((batch, *step.norm.shape), step.residual is not None, step.relu, readers)
        found[(batch, *shapes[node.inputs[0]]), case] = None
    return list(found)


def conv_and_input(shape: Sequence[int], case: Case, dtype: torch.dtype) -> tuple[nn.Conv2d, Any]:
    """A 1×1 convolution that makes the input of a case, and an array for it."""
    conv = nn.Conv2d(shape[1], case[0][1], 1, bias=False, device="cuda")
    x = torch.randn(tuple(shape), dtype=dtype, device="cuda")
    return conv, x.contiguous(memory_format=torch.channels_last)


def compile_convs(given: tuple[str, Sequence[int], str, int, int]) -> int:
    """Compile the convolutions of every `of`-th shape, from `first` on; how many."""
    network, batches, dtype, first, of = given
    done = 0
    for shape, case in [pair for batch in batches for pair in convs(network, batch)][first::of]:
        conv, x = conv_and_input(shape, case, DTYPES[dtype])
        if conv1x1_bn_stats.supports(conv):
            op, y = prepared(case, DTYPES[dtype])
            plan = autotune.default_plan(y)
            own = autotune.make_kernels(op, y, plan, plan)
            done += conv1x1_bn_stats.faster_with_stats(conv, op, own, x) is not None
        torch.cuda.empty_cache()
    return done


def compile_all(args: argparse.Namespace) -> None:
    """Compile every kernel into Triton's cache, in several processes."""
    with ProcessPoolExecutor(args.compilers, mp_context=get_context("spawn")) as pool:
        found = [case for batch in args.batches for case in cases(args.network, batch)]
        shares = [(found, args.precision, i, args.compilers) for i in range(args.compilers)]
        of_convs = [
            (args.network, args.batches, args.precision, i, args.compilers)
            for i in range(args.compilers)
        ]
        for result in (pool.map(compile_share, shares), pool.map(compile_convs, of_convs)):
            list(result)


def captured(run: Run) -> torch.cuda.CUDAGraph:
    """A graph of `CALLS` calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return graph


def interleaved_ms(both: tuple[Run, Run]) -> tuple[list[float], list[float]]:
    """Milliseconds of a call of each, replayed in turn; which comes first alternates."""
    graphs = [captured(run) for run in both]
    events: list[list[Any]] = [[], []]
    for number in range(ROUNDS + 1):  # the first round is a warm-up
        for which in (0, 1) if number % 2 else (1, 0):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            graphs[which].replay()
            pair[1].record()
            events[which].append(pair)
    torch.cuda.synchronize()
    first, second = ([start.elapsed_time(end) / CALLS for start, end in own[1:]] for own in events)
    return first, second


def ratio_of(without_ms: Sequence[float], with_ms: Sequence[float]) -> dict[str, float]:
    """Medians, and the median over the rounds of the ratio with its interval."""
    ratios = [a / b for a, b in zip(without_ms, with_ms, strict=True)]
    interval = median_interval(ratios)
    return {
        "without_ms": median(without_ms), "with_ms": median(with_ms),
        "ratio": median(ratios), "low": interval.low, "high": interval.high,
    }  # fmt: skip


def one_launch_shapes(args: argparse.Namespace, batch: int, tuner: Tuner) -> list[dict[str, Any]]:
    """A row for each pass of each batch normalization in which one launch fits."""
    rows = []
    for case, count in cases(args.network, batch).items():
        op, x = prepared(case, DTYPES[args.precision])
        timings = tuner.timings(op, x)
        x.normal_()
        residual, gradients = autotune.example_inputs(op, x)
        affine = (op.norm.weight.detach(), op.norm.bias.detach())
        default = autotune.default_plan(x)
        saved = autotune.make_kernels(op, x, default, default).forward(x, residual, op.norm)[1]
        for which, name in enumerate(("forward", "backward")):
            one = autotune.fastest_plan([t for t in timings[which] if t.piece == "one-launch"])
            two = autotune.fastest_plan(two_launches(timings[which]))
            if one is None or two is None:
                continue
            runs = []
            for plan, _ in (two, one):
                kernels = autotune.make_kernels(op, x, plan, plan)
                if which == 0:
                    calls = kernels.forward_calls(x, residual, op.norm)
                else:
                    calls = kernels.backward_calls(gradients, x, affine, saved)
                runs.append(calls.run)
            found = ratio_of(*interleaved_ms((runs[0], runs[1])))
            rows.append({"variant": "one-launch", "case": case, "count": count, "pass": name,
                         "plan": describe(one[0]), **found})  # fmt: skip
        del op, x, residual, gradients, saved
        torch.cuda.empty_cache()
    return rows


def conv_shapes(args: argparse.Namespace, batch: int, tuner: Tuner) -> list[dict[str, Any]]:
    """A row for each 1×1 convolution for which statistics were found to be faster."""
    rows = []
    for shape, case in convs(args.network, batch):
        conv, x = conv_and_input(shape, case, DTYPES[args.precision])
        if not conv1x1_bn_stats.supports(conv):
            continue
        op, y = prepared(case, DTYPES[args.precision])
        with tuner.tuning(""):
            own = autotune.fastest_kernels(op, torch.empty_like(y))
        found = None if own is None else tuner.conv(conv, op, own, x)
        if found is not None:
            weight = conv.weight.detach().to(x.dtype)
            y.normal_()
            residual = torch.randn_like(y) if op.add else None
            separate = own.forward_calls(y, residual, op.norm)
            fused = found.kernels.forward_calls(y, residual, op.norm)
            with_stats = conv1x1_bn_stats.Conv1x1WithStats(
                conv, op.norm, found.kernels, found.tiling
            )

            def without(x: Any = x, weight: Any = weight, calls: Any = separate) -> None:
                torch.conv2d(x, weight)
                calls.run()

            def with_them(
                x: Any = x, weight: Any = weight, conv: Any = with_stats, calls: Any = fused
            ) -> None:
                conv.product(x, weight)
                calls.run()

            rows.append({"variant": "conv-stats", "input": shape, "case": case,
                         "pass": "forward", "plan": str(found.tiling),
                         **ratio_of(*interleaved_ms((without, with_them)))})  # fmt: skip
        del conv, x, op, y
        torch.cuda.empty_cache()
    return rows


def program(args: argparse.Namespace, batch: Batch) -> Any:
    """The captured program after its capture, and its batch on the device."""
    network = networks.build(args.network)
    request = BuildRequest(
        network=network,
        work=TrainSteps(network=args.network, batch_per_device=batch.samples, momentum=0.9),
        placement=Placement(),
        program=ProgramSettings(framework=FRAMEWORK, precision=args.precision, layout="nhwc"),
        sync=strategies.make("none"),
        device=args.device,
        threads=torch.get_num_threads(),
    )
    built = entry(FRAMEWORK).load().build(request)
    placed = built.place(batch)
    built.compile(placed)
    built.load(network.draw(0))
    for _ in range(CAPTURED_AFTER):
        built.train_step(placed)
    built.synchronize()
    torch.cuda.empty_cache()
    return built, placed


def side(built: Any, placed: Any) -> Side:
    """A program as a side of a comparison."""
    return Side(step=lambda: built.train_step(placed), synchronize=built.synchronize)


def steps(args: argparse.Namespace, batch: int, tuner: Tuner) -> list[dict[str, Any]]:
    """A row for each variant: steps without it against steps with all."""
    given = random_batch(networks.build(args.network), batch)
    rows = []
    with tuner.tuning(""):
        with_all = [program(args, given) for _ in range(args.instances)]
    for variant in VARIANTS:
        with tuner.tuning(variant):
            without = [program(args, given) for _ in range(args.instances)]
        pairs = [(side(*a), side(*b)) for a, b in zip(without, with_all, strict=True)]
        found = compare(pairs, args.seconds)
        rows.append({"variant": variant, "batch": batch, **asdict(found)})
        print(
            f"step, batch size {batch}, {variant:10}: without {found.first_step_ms:.3f} ms, with "
            f"{found.second_step_ms:.3f} ms, ratio {found.ratio:.4f} "
            f"({found.low:.4f} to {found.high:.4f})",
            flush=True,
        )
        del pairs
        for built, _ in without:
            built.close()
    for built, _ in with_all:
        built.close()
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Lines of the shapes, and how many are faster and slower beyond their interval."""
    lines = [
        f"{r['variant']:10} {r.get('input', '')!s:20} {r['case'][0]!s:20} "
        f"{'add' if r['case'][1] else '':3} {'relu' if r['case'][2] else '':4} {r['pass']:8} "
        f"{r['without_ms']:.4f} → {r['with_ms']:.4f} ms, {r['ratio']:.3f} "
        f"({r['low']:.3f} to {r['high']:.3f}) {r['plan']}"
        for r in rows
    ]
    for variant in VARIANTS:
        own = [r for r in rows if r["variant"] == variant]
        faster = sum(r["low"] > 1 for r in own)
        slower = sum(r["high"] < 1 for r in own)
        lines.append(f"{variant}: {len(own)} shapes, {faster} faster, {slower} slower")
    return "\n".join(lines)


def absent(device: str) -> str:
    """What is missing; empty where nothing is."""
    if not torch.cuda.is_available() or not device.startswith("cuda"):
        return "absent: a GPU that PyTorch can use (--device cuda:0)"
    return "" if find_spec("triton") else "absent: Triton"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--batches", default="256,32", help="batch sizes")
    parser.add_argument("--precision", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--instances", type=int, default=3, help="programs of each side")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each comparison of steps")
    parser.add_argument("--compilers", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args(given)
    args.batches = tuple(map(int, args.batches.split(",")))
    return args


def main(given: Sequence[str] | None = None) -> int:
    """Compare, print, and write after each batch size."""
    args = arguments(given)
    if reason := absent(args.device):
        print(reason)
        return 2
    started = time.monotonic()
    torch.cuda.set_device(args.device)
    compile_all(args)
    result: dict[str, Any] = {
        "schema": 1, "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
        **{k: v for k, v in vars(args).items() if k != "json"}, "steps": [], "shapes": [],
    }  # fmt: skip
    print(f"{result['gpu']}, PyTorch {torch.__version__}, {args.network}, {args.precision}")
    for batch in args.batches:
        tuner = Tuner()
        result["steps"] += steps(args, batch, tuner)
        rows = [*one_launch_shapes(args, batch, tuner), *conv_shapes(args, batch, tuner)]
        result["shapes"] += rows
        result["elapsed_s"] = time.monotonic() - started
        print(summary(rows))
        print(f"{result['elapsed_s']:.0f} s so far", flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
