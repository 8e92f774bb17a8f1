"""Throughput of `pytorch-compiled` relative to stock torch.compile on torchvision's module.

cubemesh's program and torchvision's ResNet-50 under `torch.compile`, as one writes that by hand:
channels_last, autocast to bf16, SGD with momentum, fused. Both train with resident data, A/B
interleaved in one process (ab_comparison.py) with windows of several steps and one synchronization
each. The ratio is cubemesh's throughput over stock's; the goal is that its 95 % interval includes
or exceeds 1.

    python benchmarks/compiled_vs_stock.py --seconds 30 --json stock.json

Without a GPU or without torchvision it prints `absent` and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from ab_comparison import Side, compare, random_batch, setting, write_json
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

GOAL = 1.0
RATE, MOMENTUM = 0.01, 0.9
STOCK = {"resnet-50": "resnet50", "resnet-18": "resnet18", "alexnet": "alexnet", "vgg16": "vgg16"}
"""cubemesh's name → torchvision's."""
AUTOCAST = {"bf16": torch.bfloat16, "fp32": None, "tf32": None}


def stock_side(args: argparse.Namespace, batch: Batch) -> Side:
    """torchvision's module, compiled with `mode`, its step written by hand."""
    from torchvision import models

    model = getattr(models, STOCK[args.network])(weights=None)
    model.to(args.device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    run: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        model, mode=None if args.mode == "default" else args.mode
    )
    low_precision = AUTOCAST[args.precision]
    x = torch.from_numpy(batch.images).to(args.device, memory_format=torch.channels_last)
    y = torch.from_numpy(batch.labels).to(args.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", low_precision, enabled=low_precision is not None):
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    return Side(step=step, synchronize=torch.cuda.synchronize)


def our_side(args: argparse.Namespace, batch: Batch) -> Side:
    """The program, compiled, its batch placed once."""
    network = networks.build(args.network)
    request = BuildRequest(
        network=network,
        work=TrainSteps(
            network=args.network,
            batch_per_device=args.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
        ),
        placement=Placement(),
        program=ProgramSettings(
            framework="pytorch-compiled", precision=args.precision, layout="nhwc"
        ),
        sync=strategies.make("none"),
        device=args.device,
        threads=args.threads,
    )
    program = entry("pytorch-compiled").load().build(request)
    placed = program.place(batch)
    program.compile(placed)
    program.load(network.draw(0))
    return Side(step=lambda: program.train_step(placed), synchronize=program.synchronize)


def absent() -> str:
    """What is missing here, in words; empty without a reason."""
    if not torch.cuda.is_available():
        return "absent: a GPU that PyTorch can use"
    if importlib.util.find_spec("torchvision") is None:
        return f"absent: torchvision (install the one made for PyTorch {torch.__version__})"
    return ""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=sorted(STOCK), default="resnet-50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=sorted(AUTOCAST), default="bf16")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, about")
    parser.add_argument("--instances", type=int, default=2, help="of each side")
    parser.add_argument(
        "--mode",
        choices=["default", "max-autotune-no-cudagraphs", "max-autotune", "reduce-overhead"],
        default="default",
        help="of stock's torch.compile; the program's own is always the default",
    )
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> int:
    """Compare and print; the result does not change the exit code."""
    args = arguments()
    if reason := absent():
        print(reason)
        return 2
    batch = random_batch(networks.build(args.network), args.batch)
    both = []
    for _ in range(args.instances):
        ours = our_side(args, batch)  # first: it sets precision and cuDNN for the process
        both.append((stock_side(args, batch), ours))
    found = compare(both, args.seconds)
    print(f"{setting(args)}, nhwc, {torch.cuda.get_device_name(args.device)}")
    print(found.text(f"stock ({args.mode})", "pytorch-compiled", args.batch))
    reached = found.high >= GOAL
    print(f"the interval {'includes or exceeds' if reached else 'is below'} {GOAL}")
    write_json(args, found, goal=GOAL, reached=reached)
    return 0


if __name__ == "__main__":
    sys.exit(main())
