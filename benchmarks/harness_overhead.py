"""Overhead of cubemesh's step relative to PyTorch written by hand.

Both train the same network from the same weights, with the same optimizer and a copy of the same
minibatch in every step, A/B interleaved in one process (ab_comparison.py), four instances of each.

    python benchmarks/harness_overhead.py --network little-cnn --batch 8
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

import torch

from ab_comparison import Side, compare, cubemesh_side, random_batch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from handwritten import NETWORKS as HANDWRITTEN
from handwritten import train_step, wait_for

GOAL = 0.99
INSTANCES = 4
RATE, MOMENTUM = 0.01, 0.9
AUTOCAST = {"bf16": torch.bfloat16}


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


def bare_side(network: networks.Network, batch: Batch, precision: str, device: str) -> Side:
    """The same, written by hand."""
    weights = network.draw(0)
    step = train_step(
        network.name,
        [weights[name] for name in network.parameters],
        batch.images,
        batch.labels,
        classes=network.targets[0].classes or 1,
        device=device,
        rate=RATE,
        momentum=MOMENTUM,
        narrow=AUTOCAST.get(precision),
    )
    return Side(step=step, synchronize=wait_for(device))


def measure(args: argparse.Namespace) -> Result:
    """Build both, compare them, and sum up."""
    network = networks.build(args.network, args.image_size, None)
    batch = random_batch(network, args.batch)
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
        sync=strategies.make("none"),
        device=args.device,
        threads=threads,
    )
    cubemesh_side("pytorch", request, batch)  # sets threads and precision, for the bare loop too
    both = [
        (
            bare_side(network, batch, args.precision, args.device),
            cubemesh_side("pytorch", request, batch),
        )
        for _ in range(INSTANCES)
    ]
    found = compare(both, args.seconds)
    return Result(
        network=args.network,
        batch=args.batch,
        precision=args.precision,
        device=args.device,
        threads=threads,
        torch=torch.__version__,
        pairs=found.pairs,
        steps_per_window=found.steps_per_window,
        bare_step_ms=found.first_step_ms,
        bare_step_mad_ms=found.first_step_mad_ms,
        cubemesh_step_ms=found.second_step_ms,
        cubemesh_step_mad_ms=found.second_step_mad_ms,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
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
