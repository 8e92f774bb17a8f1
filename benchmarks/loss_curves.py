"""Loss curves of two frameworks, compared with the spread of runs of one.

A task that can be learned: each class is a fixed random picture, a sample is its class's picture
with noise. Both programs train on the same minibatches from the same initial weights, several times
with other seeds. Curves are divided into tenths, each with its mean loss. Two programs learn alike
if, in every tenth, their means over the seeds differ by at most three standard errors of that
difference, from the spread over the seeds.

    python benchmarks/loss_curves.py --device cuda:0 --network resnet-50 --steps 300

Exit code 1 if they do not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

NOISE = 0.35
"""Standard deviation of the noise; pictures are of values between 0 and 1."""
CLASSES = 10
TENTHS = 10
ERRORS = 3.0

Curve = NDArray[np.float64]


def batches(network: Network, samples: int, steps: int, seed: int) -> Iterator[Batch]:
    """The batches of one training."""
    shape = network.inputs[0].shape
    pictures = np.random.default_rng(0).random((CLASSES, *shape), dtype=np.float32)
    rng = np.random.default_rng(1 + seed)
    for _ in range(steps):
        labels = rng.integers(0, CLASSES, samples)
        noise = rng.standard_normal((samples, *shape), dtype=np.float32)
        images = (pictures[labels] + np.float32(NOISE) * noise).clip(0, 1)
        yield Batch(images=images, labels=labels)


def curve(framework: str, args: argparse.Namespace, seed: int) -> Curve:
    """Losses of one training, (steps,)."""
    network = networks.build(args.network, args.image_size, CLASSES)
    request = BuildRequest(
        network=network,
        work=TrainSteps(
            network=args.network,
            batch_per_device=args.batch,
            learning_rate=args.rate,
            momentum=0.9,
            seed=seed,
        ),
        placement=Placement(),
        program=ProgramSettings(framework=framework, precision=args.precision, layout=args.layout),
        sync=strategies.make("none"),
        device=args.device,
        threads=args.threads,
    )
    program = entry(framework).load().build(request)
    fed = batches(network, args.batch, args.steps, seed)
    first = next(fed)
    if isinstance(program, SupportsCompilation):
        program.compile(program.place(first))
    program.load(network.draw(seed))
    losses = []
    for batch in (first, *fed):
        program.train_step(program.place(batch))
        losses.append(program.loss())
    program.close()
    return np.array(losses)


def compared(one: list[Curve], other: list[Curve]) -> tuple[Curve, Curve, Curve]:
    """Of each tenth: the mean losses over the seeds, and their difference in standard errors."""
    means = [np.array([[t.mean() for t in np.array_split(c, TENTHS)] for c in x]) for x in
             (one, other)]  # fmt: skip
    spread = np.sqrt(sum(m.var(axis=0, ddof=1) for m in means) / len(one))
    distance = np.abs(means[0].mean(axis=0) - means[1].mean(axis=0)) / np.maximum(spread, 1e-12)
    return means[0].mean(axis=0), means[1].mean(axis=0), distance


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", default="pytorch,pytorch-captured", help="two names")
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=4, help="trainings of each, two or more")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nhwc")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the curves there as well")
    args = parser.parse_args(given)
    if args.seeds < 2 or args.steps < TENTHS or len(args.frameworks.split(",")) != 2:
        parser.error(f"two frameworks, two seeds and {TENTHS} steps are needed at least")
    return args


def main(given: list[str] | None = None) -> int:
    """Train, compare, print."""
    args = arguments(given)
    names = args.frameworks.split(",")
    for name in names:
        if args.device not in entry(name).load().capabilities().devices:
            print(f"absent: {args.device} for {name}")
            return 2
    curves = {name: [curve(name, args, seed) for seed in range(args.seeds)] for name in names}
    first, second, distance = compared(*curves.values())
    print(f"tenth  {names[0]:>17} {names[1]:>17}  standard errors of difference")
    for n, row in enumerate(zip(first, second, distance, strict=True), start=1):
        print(f"{n:5}  {row[0]:17.4f} {row[1]:17.4f}  {row[2]:.2f}")
    alike = bool((distance <= ERRORS).all())
    print("they learn alike" if alike else f"they differ by more than {ERRORS} standard errors")
    if args.json:
        with open(args.json, "w") as file:
            plain = {name: [c.tolist() for c in found] for name, found in curves.items()}
            json.dump({**vars(args), "curves": plain, "alike": alike}, file)
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
