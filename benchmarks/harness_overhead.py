"""What does cubemesh's step cost above PyTorch written by hand? Nothing, is the claim.

Both train the same network from the same weights, with the same optimizer and a copy of the same
batch in every step, in one process. Short windows of the two alternate, in an order drawn for each
pair, so that whatever else happens on the machine meets both alike. Of each pair the ratio of
throughputs is taken (cubemesh's over the bare loop's; 1 is equal, more is faster), of the ratios
the median, and its 95 % interval by resampling the pairs.

Two equal programs in one process can differ by a percent, by where their arrays happen to lie. So
four of each are built, in turn, and every pair of windows takes the next two.

    python benchmarks/harness_overhead.py --network little-cnn --batch 8
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.frameworks.base import Batch, BuildRequest
from cubemesh.model.spec import Placement, ProgramSettings, TrainSteps
from cubemesh.parallel import exchanges
from cubemesh.statistics import bootstrap_interval, mad, median
from handwritten import NETWORKS as HANDWRITTEN

GOAL = 0.99
WINDOW_S = 0.15
WARMUP_PAIRS = 12
INSTANCES = 4
RATE, MOMENTUM = 0.01, 0.9
AUTOCAST = {"bf16": torch.bfloat16}

Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is printed, and written with `--json`."""

    network: str
    batch: int
    precision: str
    device: str
    threads: int
    torch: str
    pairs: int
    steps_per_window: int
    bare_step_ms: float
    bare_step_mad_ms: float
    cubemesh_step_ms: float
    cubemesh_step_mad_ms: float
    ratio: float
    """cubemesh's throughput over the bare loop's."""
    low: float
    high: float

    @property
    def reached(self) -> bool:
        """Whether the interval includes or exceeds the goal."""
        return self.high >= GOAL


def bare_step(network: networks.Network, batch: Batch, precision: str, device: str) -> Step:
    """Handwritten: copy the batch, forward, backward, update."""
    model = HANDWRITTEN[network.name](network.inputs[0].shape[1], network.targets[0].classes)
    weights = network.draw(0)
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), network.parameters, strict=True):
            parameter.copy_(torch.from_numpy(weights[name]))
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    kind = torch.device(device).type

    def step() -> None:
        images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
        if kind == "cuda":
            x = images.pin_memory().to(device, non_blocking=True)
            y = labels.pin_memory().to(device, non_blocking=True)
        else:
            x, y = images.clone(), labels.clone()
        optimizer.zero_grad(set_to_none=True)
        narrow = AUTOCAST.get(precision)
        with torch.autocast(kind, narrow) if narrow else nullcontext():
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def cubemesh_step(network: networks.Network, batch: Batch, request: BuildRequest) -> Step:
    """What cubemesh's measuring loop does for each step."""
    program = entry("pytorch").load().build(request)
    program.load(network.draw(0))

    def step() -> None:
        program.train_step(program.place(batch))

    return step


def window_s(step: Step, steps: int, synchronize: Callable[[], None]) -> float:
    """Seconds that `steps` steps take, the device having finished before and after."""
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return time.perf_counter() - start


def compare(both: list[tuple[Step, Step]], seconds: float, device: str) -> tuple[int, np.ndarray]:
    """(steps of a window, seconds of the windows as (pairs, 2)) for instances of (bare, ours)."""
    on_gpu = torch.device(device).type == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    once = min(window_s(step, 3, synchronize) / 3 for pair in both for step in pair)
    steps = max(1, math.ceil(WINDOW_S / once))
    order = random.Random(0)
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(pairs) < 3 * WARMUP_PAIRS or time.perf_counter() - start < seconds:
        bare, ours = both[len(pairs) % len(both)]
        if order.random() < 0.5:
            first = window_s(bare, steps, synchronize)
            pairs.append((first, window_s(ours, steps, synchronize)))
        else:
            first = window_s(ours, steps, synchronize)
            pairs.append((window_s(bare, steps, synchronize), first))
    return steps, np.array(pairs[WARMUP_PAIRS:])


def measure(args: argparse.Namespace) -> Result:
    """Build both, compare them, and sum up."""
    network = networks.build(args.network, args.image_size, None)
    rng = np.random.default_rng(0)
    shape, classes = network.inputs[0].shape, network.targets[0].classes
    batch = Batch(
        images=rng.random((args.batch, *shape), dtype=np.float32),
        labels=rng.integers(0, classes or 1, args.batch),
    )
    threads = args.threads or torch.get_num_threads()
    request = BuildRequest(
        network=network,
        work=TrainSteps(
            network=args.network,
            batch_per_device=args.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
        ),
        placement=Placement(),
        program=ProgramSettings(precision=args.precision),
        exchange=exchanges.make("none"),
        device=args.device,
        threads=threads,
    )
    cubemesh_step(network, batch, request)  # sets threads and precision, for the bare loop too
    both = [
        (
            bare_step(network, batch, args.precision, args.device),
            cubemesh_step(network, batch, request),
        )
        for _ in range(INSTANCES)
    ]
    steps, pairs = compare(both, args.seconds, args.device)
    ratios = pairs[:, 0] / pairs[:, 1]
    interval = bootstrap_interval(ratios, median)
    per_step_ms = pairs / steps * 1e3
    return Result(
        network=args.network,
        batch=args.batch,
        precision=args.precision,
        device=args.device,
        threads=threads,
        torch=torch.__version__,
        pairs=len(pairs),
        steps_per_window=steps,
        bare_step_ms=median(per_step_ms[:, 0]),
        bare_step_mad_ms=mad(per_step_ms[:, 0]),
        cubemesh_step_ms=median(per_step_ms[:, 1]),
        cubemesh_step_mad_ms=mad(per_step_ms[:, 1]),
        ratio=median(ratios),
        low=interval.low,
        high=interval.high,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=sorted(HANDWRITTEN), default="little-cnn")
    parser.add_argument("--image-size", type=int, help="pixels; the network's own unless given")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, at least")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, help="PyTorch's own choice unless given")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print; how it came out is for the reader, so the exit code is always 0."""
    args = arguments()
    result = measure(args)
    print(
        f"{result.network}, minibatch {result.batch}, {result.precision} on {result.device}, "
        f"{result.threads} threads, PyTorch {result.torch}: "
        f"{result.pairs} pairs of windows of {result.steps_per_window} steps"
    )
    print(f"bare PyTorch  {result.bare_step_ms:.3f} ms a step (MAD {result.bare_step_mad_ms:.3f})")
    print(
        f"cubemesh      {result.cubemesh_step_ms:.3f} ms a step "
        f"(MAD {result.cubemesh_step_mad_ms:.3f})"
    )
    print(
        f"ratio of throughputs, cubemesh / bare: {result.ratio:.4f} "
        f"(95 % interval {result.low:.4f} to {result.high:.4f})"
    )
    verdict = "includes or exceeds" if result.reached else "lies below"
    print(f"the interval {verdict} {GOAL}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"schema": 1, **asdict(result), "reached": result.reached}, file, indent=2)


if __name__ == "__main__":
    main()
