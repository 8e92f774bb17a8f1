"""Own INT8 kernels of inference on a CPU against ONNX Runtime and OpenVINO, in processor time.

All sides compute the same quantized graph, on one thread, interleaved in one process: each round
runs every side for a window, in an order drawn for the round. A time is the processor time of the
process over the images of the window; the ratio is the median over rounds of the best other side's
time over that of the own kernels, with its 95 % interval (order statistics).

    python benchmarks/cpu_int8.py --cases resnet-50:1,8,32 little-cnn:1 --rounds 15 --json cpu.json

With `--threads 2` engines may spin while they wait: then measure with `--clock wall` on a quiet
machine. The 8-bit weights are calibrated with random images: this measures time, not accuracy.
Where the own kernels use AMX, their results are compared with those of VNNI, to the bit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cubemesh import networks
from cubemesh.batches import Array
from cubemesh.inference.build import with_free_batch
from cubemesh.inference.cpu.lower import lower
from cubemesh.inference.cpu.session import CpuSession
from cubemesh.inference.passes import optimize
from cubemesh.inference.quantization.calibrate import calibrate
from cubemesh.inference.quantization.quantize import observed_values, quantize
from cubemesh.inference.timing import values_beyond
from cubemesh.kernels.cpu.int8.library import unsupported
from cubemesh.machines.cpuinfo import read_cpuinfo
from cubemesh.machines.files import Tree
from cubemesh.onnx.engines import ENGINES
from cubemesh.onnx.export import graph_of
from cubemesh.onnx.graph import Graph
from cubemesh.onnx.writer import serialized
from cubemesh.statistics import median

OWN = "cubemesh"
CLOCKS: dict[str, Callable[[], float]] = {"processor": time.process_time, "wall": time.perf_counter}


def random_images(graph: Graph, count: int) -> dict[str, Array]:
    """Inputs of a network."""
    value = graph.inputs[0]
    lengths = [length for length in value.shape[1:] if isinstance(length, int)]
    drawn = np.random.default_rng(count)
    return {value.name: drawn.standard_normal((count, *lengths)).astype(np.float32)}


def quantized_graph(name: str) -> Graph:
    """A network in 8 bits, its sums and pools too, with drawn weights."""
    network = networks.build(name)
    graph, _ = optimize(with_free_batch(graph_of(network, dict(network.draw(0))), {}))
    engine = next(line.load() for line in ENGINES.values() if line.installed)
    calibration = calibrate(
        graph,
        lambda content: engine.open_session(content, threads=1),
        [random_images(graph, 8)],
        observed_values(graph),
    )
    return quantize(graph, calibration, "min-max", sums=True)


def sides_of(
    graph: Graph, batch: int, threads: int, instructions: str
) -> dict[str, Callable[[], object]]:
    """Calls of every side for one batch; AssertionError where instructions disagree."""
    inputs = random_images(graph, batch)
    own = CpuSession(lower(graph), batch, threads, instructions)
    if own.instructions != "vnni":
        other = CpuSession(lower(graph), batch, threads, "vnni")
        same = all(map(np.array_equal, own.run(inputs), other.run(inputs)))
        print(f"{graph.name} {batch}: {own.instructions} and vnni agree to the bit: {same}")
        assert same
    sides: dict[str, Callable[[], object]] = {OWN: lambda: own.run(inputs)}
    content = serialized(graph)
    for name, line in ENGINES.items():
        if line.installed:
            session = line.load().open_session(content, threads=threads, batch=batch)
            sides[name] = lambda session=session: session.run(inputs)  # type: ignore[misc]
    return sides


def measured(
    sides: dict[str, Callable[[], object]], rounds: int, window_s: float, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of a call of each side in each round."""
    order = random.Random(0)
    calls = {}
    for name, run in sides.items():
        run()
        began = clock()
        run()
        calls[name] = max(1, round(window_s / max(clock() - began, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            sides[name]()
            began = clock()
            for _ in range(calls[name]):
                sides[name]()
            found[name].append((clock() - began) / calls[name])
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval."""
    ordered = sorted(values)
    beyond = values_beyond(len(ordered))
    return median(ordered), ordered[beyond], ordered[-1 - beyond]


def main() -> int:
    """Measure and print every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["resnet-50:1,8,32", "little-cnn:1"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--window", type=float, default=0.2, help="seconds of a side in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="processor")
    parser.add_argument("--instructions", default="", help="vnni or amx; default: the best")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unsupported():
        print(f"absent: {unsupported()}")
        return 2
    info = read_cpuinfo(Tree())
    versions = {name: line.version for name, line in ENGINES.items() if line.installed}
    found: dict[str, object] = {"cpu": info.model, "versions": versions}
    print(f"{info.model}; {versions}; {args.threads} threads, {args.clock} time", flush=True)
    for case in args.cases:
        name, _, batches = case.partition(":")
        graph = quantized_graph(name)
        for batch in map(int, (batches or "1").split(",")):
            sides = sides_of(graph, batch, args.threads, args.instructions)
            times = measured(sides, args.rounds, args.window, CLOCKS[args.clock])
            for side, values in times.items():
                middle, low, high = (1e3 * x / batch for x in interval(values))
                print(f"{name} {batch}: {side:12} {middle:.4g} ms/image ({low:.4g} to {high:.4g})")
            others = [side for side in times if side != OWN]
            best = min(others, key=lambda side: median(times[side]), default=OWN)
            ratios = [b / o for b, o in zip(times[best], times[OWN], strict=True)]
            ratio, low, high = interval(ratios)
            print(f"{name} {batch}: {ratio:.3f} × {best} ({low:.3f} to {high:.3f})", flush=True)
            found[f"{name} {batch}"] = {"seconds": times, "best": best, "ratio": (ratio, low, high)}
            if args.json is not None:
                args.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
