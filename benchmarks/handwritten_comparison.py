"""Throughput of each framework's program relative to the same network written by hand in it.

The program and a network as an expert would write it (the modules `handwritten*.py`, which share no
code with cubemesh) train from the same weights, with the same optimizer and a copy of the same
minibatch in every step, A/B interleaved in one process (ab_comparison.py). The ratio is cubemesh's
throughput over the handwritten one's. The goal is that its 95 % interval includes or exceeds 0.98.

    python benchmarks/handwritten_comparison.py                       # CPU, batch size 8
    python benchmarks/handwritten_comparison.py --device cuda:0       # batch size 64

What is not installed, or has no handwritten network, is printed as absent. Keras has one backend in
a process: compare `keras`, `keras-jax` and `keras-torch` in a command each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from ab_comparison import Comparison, Side, compare, cubemesh_side, random_batch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

GOAL = 0.98
RATE, MOMENTUM = 0.01, 0.9
NETWORKS = ("little-cnn", "alexnet", "resnet-50")
BATCH = {"cpu": 8, "cuda": 64}
"""Kind of device → default batch size."""
JAX_PRECISION = {"fp32": "highest", "tf32": "tensorfloat32", "bf16": "default"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A handwritten network, and the program of one framework."""

    make: Callable[[Network, BuildRequest, Batch], Side]
    placed: Callable[[Network, BuildRequest, Batch], Side] | None = None
    """The same with resident data, where it can."""
    networks: tuple[str, ...] = NETWORKS
    precisions: tuple[str, ...] = ("fp32", "tf32")


def pytorch(network: Network, request: BuildRequest, batch: Batch, compiled: bool = False) -> Side:
    """A module, autograd and torch.optim."""
    handwritten = importlib.import_module("handwritten")
    weights = network.draw(0)
    step = handwritten.train_step(
        network.name,
        [weights[name] for name in network.parameters],
        batch.images,
        batch.labels,
        classes=network.targets[0].classes,
        device=request.device,
        rate=RATE,
        momentum=MOMENTUM,
        compiled=compiled,
    )
    return Side(step=step, synchronize=handwritten.wait_for(request.device))


def jax(network: Network, request: BuildRequest, batch: Batch, copies: bool = True) -> Side:
    """Pure functions, one jitted step; unless it `copies`, data are resident."""
    handwritten = importlib.import_module("handwritten_jax")
    kind, _, index = request.device.partition(":")
    found = importlib.import_module("jax").devices("cpu" if kind == "cpu" else "gpu")
    weights = network.draw(0)
    step, wait = handwritten.train_step(
        network.name,
        [weights[name] for name in network.parameters],
        [weights[name] for name in network.state],
        batch.images,
        batch.labels,
        device=found[int(index or 0)],
        rate=RATE,
        momentum=MOMENTUM,
        precision=JAX_PRECISION[request.program.precision],
        low_precision=request.program.precision == "bf16",
        copies=copies,
    )
    return Side(step=step, synchronize=wait)


def tensorflow(
    network: Network, request: BuildRequest, batch: Batch, compiled: bool = False
) -> Side:
    """Functions over variables, one traced step."""
    weights = network.draw(0)
    step = importlib.import_module("handwritten_tensorflow").train_step(
        network.name,
        [weights[name] for name in network.parameters],
        [weights[name] for name in network.state],
        batch.images,
        batch.labels,
        rate=RATE,
        momentum=MOMENTUM,
        compiled=compiled,
    )
    wait = importlib.import_module("tensorflow").test.experimental.sync_devices
    return Side(step=step, synchronize=wait if request.device != "cpu" else lambda: None)


def keras(network: Network, request: BuildRequest, batch: Batch) -> Side:
    """A functional model and `train_on_batch`, which returns the loss, on the backend in use."""
    weights = network.draw(0)
    step = importlib.import_module("handwritten_keras").train_step(
        network.name,
        [weights[name] for name in network.parameters],
        batch.images,
        batch.labels,
        rate=RATE,
        momentum=MOMENTUM,
    )
    return Side(step=step, synchronize=lambda: None)


PEERS: dict[str, Peer] = {
    "pytorch": Peer(make=pytorch),
    "pytorch-compiled": Peer(make=lambda *of: pytorch(*of, compiled=True)),
    "jax": Peer(
        make=jax,
        placed=partial(jax, copies=False),
        precisions=tuple(JAX_PRECISION),
    ),
    "tensorflow": Peer(make=tensorflow),
    "tensorflow-xla": Peer(make=lambda *of: tensorflow(*of, compiled=True)),
    "keras": Peer(make=keras),
    "keras-jax": Peer(make=keras),
    "keras-torch": Peer(make=keras),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of what is printed, and written with `--json`."""

    framework: str
    network: str
    batch: int
    precision: str
    device: str
    threads: int
    found: Comparison | None
    """First is the network by hand, second the program; None where the peer is absent."""
    absent: str = ""
    """Why there is no comparison."""

    @property
    def reached(self) -> bool | None:
        """Whether the interval includes or exceeds the goal; None where nothing was compared."""
        return None if self.found is None else self.found.high >= GOAL


def measure(framework: str, name: str, args: argparse.Namespace) -> Result:
    """Build instances of both, compare them."""
    batch = args.batch or BATCH[args.device.partition(":")[0]]
    absent = why_absent(framework, name, args)
    return Result(
        framework=framework,
        network=name,
        batch=batch,
        precision=args.precision,
        device=args.device,
        threads=args.threads,
        found=None if absent else run(framework, name, batch, args),
        absent=absent,
    )


def why_absent(framework: str, name: str, args: argparse.Namespace) -> str:
    """Why there is nothing to compare, in words; empty where there is."""
    peer = PEERS.get(framework)
    if peer is None:
        return "no network is written by hand in it here"
    if not entry(framework).installed:
        return "not installed"
    if name not in peer.networks:
        return f"by hand there are {', '.join(peer.networks)}"
    if args.precision not in peer.precisions:
        return f"by hand in {', '.join(peer.precisions)} only"
    try:
        able = entry(framework).load().capabilities()
    except UsageError as error:  # Keras has one backend in a process
        return str(error)
    if args.device not in able.devices:
        return f"{args.device} is not offered; {', '.join(able.devices) or 'no device'} is"
    if args.precision not in able.precisions[args.device.partition(":")[0]]:
        return f"{args.precision} is not offered"
    return ""


def run(framework: str, name: str, samples: int, args: argparse.Namespace) -> Comparison:
    """Compare instances of both."""
    network = networks.build(name)
    batch = random_batch(network, samples)
    request = BuildRequest(
        network=network,
        work=TrainSteps(
            network=name, batch_per_device=samples, learning_rate=RATE, momentum=MOMENTUM
        ),
        placement=Placement(),
        program=ProgramSettings(
            framework=framework, precision=args.precision, layout=entry(framework).layout
        ),
        sync=strategies.make("none"),
        device=args.device,
        threads=args.threads,
    )
    both = []
    for _ in range(args.instances):
        ours = cubemesh_side(framework, request, batch)  # it sets threads and precision, for both
        both.append((PEERS[framework].make(network, request, batch), ours))
    return compare(both, args.seconds)


def text(result: Result) -> str:
    """A line of the table."""
    line = f"{result.framework:17} {result.network:11} {result.batch:5}  "
    if result.found is None:
        return f"{line}absent: {result.absent}"
    c = result.found
    verdict = "yes" if result.reached else "no"
    return (
        f"{line}{c.first_step_ms:10.3f} {c.second_step_ms:10.3f}   "
        f"{c.ratio:.4f} ({c.low:.4f} to {c.high:.4f})  {c.pairs:5}  {verdict}"
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    named = dict.fromkeys((*PEERS, *(n for n in FRAMEWORKS if n != "null")))
    parser.add_argument("--frameworks", default=",".join(named), help="names, between commas")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, between commas")
    parser.add_argument("--batch", type=int, help="8 on a CPU and 64 on a GPU, unless given")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each comparison, about")
    parser.add_argument("--instances", type=int, default=4, help="of each side, built and compared")
    parser.add_argument("--precision", choices=sorted(JAX_PRECISION), default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    args = parser.parse_args()
    args.frameworks, args.networks = args.frameworks.split(","), args.networks.split(",")
    try:
        for name in args.networks:
            networks.entry(name)
    except UsageError as error:
        parser.error(str(error))
    if args.device.partition(":")[0] not in BATCH:
        parser.error(f"--device {args.device} is not known: give cpu, or cuda:0")
    return args


def main() -> None:
    """Measure and print; the exit code is always 0."""
    args = arguments()
    print(
        f"{platform.machine()}, {args.device}, {args.threads} threads, {args.precision}; ms a step"
    )
    print(
        "framework         network     batch     by hand   cubemesh   "
        f"ratio (95 % interval)        pairs  reaches {GOAL}"
    )
    results = []
    for name in args.networks:
        for framework in args.frameworks:
            results.append(measure(framework, name, args))
            print(text(results[-1]), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            listed = [{**asdict(r), "reached": r.reached} for r in results]
            json.dump({"schema": 1, "goal": GOAL, "results": listed}, file, indent=2)


if __name__ == "__main__":
    main()
