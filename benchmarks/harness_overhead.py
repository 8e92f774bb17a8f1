"""Overhead of cubemesh's step relative to PyTorch written by hand.

Both train the same network from the same weights, with the same optimizer and a copy of the same
batch in every step, A/B interleaved in one process (ab_comparison.py), four instances of each.

    python benchmarks/harness_overhead.py --network little-cnn --batch 8
"""

from __future__ import annotations

import argparse

import torch

from ab_comparison import (
    Comparison,
    Side,
    compare,
    cubemesh_side,
    random_batch,
    setting,
    write_json,
)
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


def bare_side(network: networks.Network, batch: Batch, precision: str, device: str) -> Side:
    """The same training, written by hand."""
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
        low_precision=AUTOCAST.get(precision),
    )
    return Side(step=step, synchronize=wait_for(device))


def measure(args: argparse.Namespace) -> Comparison:
    """Build instances of both and compare them."""
    network = networks.build(args.network, args.image_size, None)
    batch = random_batch(network, args.batch)
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
        threads=args.threads,
    )
    cubemesh_side("pytorch", request, batch)  # sets threads and precision, for the bare loop too
    both = [
        (
            bare_side(network, batch, args.precision, args.device),
            cubemesh_side("pytorch", request, batch),
        )
        for _ in range(INSTANCES)
    ]
    return compare(both, args.seconds)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=sorted(HANDWRITTEN), default="little-cnn")
    parser.add_argument("--image-size", type=int, help="pixels; the network's own unless given")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, at least")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print; the exit code is always 0."""
    args = arguments()
    found = measure(args)
    print(setting(args))
    print(found.text("bare PyTorch", "cubemesh", args.batch))
    print(f"the interval {'includes or exceeds' if found.high >= GOAL else 'is below'} {GOAL}")
    write_json(args, found, goal=GOAL, reached=found.high >= GOAL)


if __name__ == "__main__":
    main()
