"""Is cubemesh at its fastest ahead of what one gets from each framework by the book?

Cubemesh's program in the fastest of a few settings (framework and layout, found by timing each for
a few steps), beside the stock ways to train the same network in the same precision: PyTorch eager
and compiled, with torchvision's module where it is installed and one written by hand elsewhere;
JAX, TensorFlow and Keras by hand (the modules `handwritten*.py`), in fp32 and tf32 only. Each pair
trains in one process, window by window in turn (pairs.py). Batches lie on the device already; only
the peers other than PyTorch copy theirs in each step, and there cubemesh does too.

    python benchmarks/versus_peers.py --networks little-cnn --batch 128                    # CPU
    python benchmarks/versus_peers.py --device cuda:0 --networks resnet-50 --batch 256 \
        --precision bf16

The ratio is cubemesh's throughput over the peer's. What is not installed is printed as absent.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from against_handwritten import JAX_PRECISION, MOMENTUM, PEERS, RATE
from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.frameworks.base import Batch, BuildRequest, Compiles
from cubemesh.frameworks.pytorch.runtime import NARROW_TYPES
from cubemesh.model.spec import Placement, ProgramSettings
from cubemesh.model.work import TrainSteps
from cubemesh.networks.graph import Network
from cubemesh.parallel import exchanges
from pairs import Comparison, Side, compare, cubemesh_side, random_batch

SETTINGS = {
    "cpu": (("pytorch", "nchw"), ("pytorch", "nhwc"), ("pytorch-compiled", "nhwc")),
    "cuda": (("pytorch-captured", "nhwc"), ("pytorch-compiled", "nhwc"), ("pytorch", "nhwc")),
}
"""Kind of device → (framework, layout) that are tried."""
TRIAL_STEPS = 5
SETTLING_STEPS = 4
"""Before a trial: the captured program takes three until it replays."""
TORCHVISION = {"resnet-50": "resnet50", "resnet-18": "resnet18", "alexnet": "alexnet"}
STOCK = ("stock eager", "stock compiled")
OTHERS = ("jax", "tensorflow", "tensorflow-xla", "keras")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One peer."""

    network: str
    peer: str
    setting: str
    """Cubemesh's, the fastest that was found."""
    found: Comparison | None = None
    absent: str = ""


def request_for(network: Network, args: argparse.Namespace, framework: str, layout: Any) -> Any:
    """What a program is built from."""
    return BuildRequest(
        network=network,
        work=TrainSteps(
            network=network.name,
            batch_per_device=args.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
        ),
        placement=Placement(),
        program=ProgramSettings(framework=framework, precision=args.precision, layout=layout),
        exchange=exchanges.make("none"),
        device=args.device,
        threads=args.threads,
    )


def ours(request: BuildRequest, batch: Batch) -> Side:
    """The program on a batch that lies on its device."""
    program = entry(request.program.framework).load().build(request)
    placed = program.place(batch)
    if isinstance(program, Compiles):
        program.compile(placed)
    program.load(request.network.draw(0))
    return Side(step=lambda: program.train_step(placed), synchronize=program.synchronize)


def step_s(side: Side) -> float:
    """Seconds of a step, about."""
    for _ in range(SETTLING_STEPS):
        side.step()
    side.synchronize()
    start = time.perf_counter()
    for _ in range(TRIAL_STEPS):
        side.step()
    side.synchronize()
    return (time.perf_counter() - start) / TRIAL_STEPS


def fastest(network: Network, batch: Batch, args: argparse.Namespace) -> tuple[str, str]:
    """(framework, layout) of the fastest setting that this machine offers."""
    tried: dict[tuple[str, str], float] = {}
    for framework, layout in SETTINGS[args.device.partition(":")[0]]:
        if args.device in entry(framework).load().capabilities().devices:
            side = ours(request_for(network, args, framework, layout), batch)
            tried[framework, layout] = step_s(side)
            print(f"  tried {framework}, {layout}: {tried[framework, layout] * 1e3:.2f} ms a step")
            del side
    return min(tried, key=lambda setting: tried[setting])


def stock(network: Network, args: argparse.Namespace, batch: Batch, compiled: bool) -> Side:
    """PyTorch as its tutorials write it: channels last, autocast, SGD with momentum, fused."""
    if network.name in TORCHVISION and importlib.util.find_spec("torchvision"):
        models = importlib.import_module("torchvision.models")
        module = getattr(models, TORCHVISION[network.name])(weights=None)
    else:
        module = getattr(importlib.import_module("handwritten"), network.name.replace("-", "_"))()
    layout = torch.channels_last if args.device != "cpu" else torch.contiguous_format
    module.to(args.device, memory_format=layout).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    run: Callable[[torch.Tensor], torch.Tensor] = torch.compile(module) if compiled else module
    narrow = NARROW_TYPES.get(args.precision)
    kind = args.device.partition(":")[0]
    x = torch.from_numpy(batch.images).to(args.device, memory_format=layout)
    y = torch.from_numpy(batch.labels).to(args.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, narrow, enabled=narrow is not None):
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    wait = (lambda: None) if kind == "cpu" else torch.cuda.synchronize
    return Side(step=step, synchronize=wait)


def why_absent(peer: str, network: Network, args: argparse.Namespace) -> str:
    """Why a peer is not there, in words; empty where it is."""
    if peer in STOCK:
        handwritten = importlib.import_module("handwritten")
        by_hand = hasattr(handwritten, network.name.replace("-", "_"))
        in_torchvision = network.name in TORCHVISION and importlib.util.find_spec("torchvision")
        return "" if by_hand or in_torchvision else "no stock module of this network"
    if importlib.util.find_spec(PEERS[peer].requires) is None:
        return "not installed"
    if network.name not in PEERS[peer].networks:
        return "not written by hand in it"
    if args.precision not in JAX_PRECISION:
        return f"by hand in {', '.join(JAX_PRECISION)} only"
    if args.device not in entry(peer).load().capabilities().devices:
        return f"not on {args.device}"
    return ""


def versus(peer: str, network: Network, setting: tuple[str, str], args: Any, batch: Batch) -> Line:
    """One line: instances of both, compared."""
    told = ", ".join(setting)
    absent = why_absent(peer, network, args)
    if absent:
        return Line(network=network.name, peer=peer, setting=told, absent=absent)
    request = request_for(network, args, *setting)
    both = []
    for _ in range(args.instances):
        if peer in STOCK:
            mine = ours(request, batch)  # first: it sets precision and cuDNN for the process
            both.append((stock(network, args, batch, peer == "stock compiled"), mine))
        else:
            mine = cubemesh_side(setting[0], request, batch)
            both.append((PEERS[peer].make(network, request, batch), mine))
    found = compare(both, args.seconds)
    return Line(network=network.name, peer=peer, setting=told, found=found)


def text(line: Line, samples: int) -> str:
    """A line of the table."""
    head = f"{line.network:11} {line.peer:15} "
    if line.found is None:
        return f"{head}absent: {line.absent}"
    c = line.found
    rates = [samples / ms * 1e3 for ms in (c.first_step_ms, c.second_step_ms)]
    return (
        f"{head}{rates[0]:10,.1f} {rates[1]:10,.1f}   {c.ratio:.3f} ({c.low:.3f} to {c.high:.3f})"
        f"  {c.pairs:4}  {line.setting}"
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="little-cnn,resnet-50", help="names, between commas")
    parser.add_argument("--peers", default=",".join((*STOCK, *OTHERS)), help="between commas")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each comparison, about")
    parser.add_argument("--instances", type=int, default=2, help="of each side")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    return parser.parse_args()


def main() -> int:
    """Compare and print; how it came out does not change the exit code."""
    args = arguments()
    if args.device != "cpu" and not torch.cuda.is_available():
        print("absent: a GPU that PyTorch can use")
        return 2
    lines = []
    for name in args.networks.split(","):
        network = networks.build(name)
        batch = random_batch(network, args.batch)
        print(f"{name}, minibatch {args.batch}, {args.precision}, {args.device}")
        setting = fastest(network, batch, args)
        print(f"{'peer/s':>38} {'cubemesh/s':>10}   ratio (95 % interval), pairs, setting")
        for peer in args.peers.split(","):
            lines.append(versus(peer, network, setting, args, batch))
            print(text(lines[-1], args.batch), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            settings = {k: v for k, v in vars(args).items() if k != "json"}
            result = {"schema": 1, "torch": torch.__version__, **settings}
            json.dump({**result, "lines": [asdict(line) for line in lines]}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
