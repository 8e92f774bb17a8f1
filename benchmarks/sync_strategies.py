r"""Throughput with each gradient synchronization strategy relative to none.

One program for each strategy, and one without synchronization, interleaved in the same processes:
one process per device, another program first in each round, resident data. A turn has as many steps
as the program without synchronization makes in `--seconds`. Printed for each strategy: samples/s of
the slowest device, and their ratio to those of the slowest device without synchronization in the
same round; the mean over the rounds, with the lowest and the highest. Then whether all ranks have
the same weights, to the bit.

Two more measure parts of a strategy: `gathered` copies gradients into buckets and sends nothing,
and `barrier` also synchronizes the ranks at the end of each backward pass, so that every step takes
as long as the slowest device's does.

    python benchmarks/sync_strategies.py --device cuda --framework pytorch-captured \
        --precision bf16 --layout nhwc --cases alexnet:256,vgg-16:64,resnet-50:32 --json turns.json
    python benchmarks/sync_strategies.py --devices 2 --cases little-cnn:64 --syncs all-reduce

The goals, on eight H200s: AlexNet 95 %, VGG-16 98 %, ResNet-50 92 % at 32 and 98.5 % at 256.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # ranks are forked: no CUDA before

import torch
import torch.distributed as dist

from ab_comparison import random_batch
from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.gradient_sync import Bucket, GradientSync
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.frameworks.pytorch import join, launch
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.statistics import mean

NOTHING = "none"
WARM_STEPS = 10
"""The first of them are recorded where steps are captured."""
JOIN_S = 120.0


class Gathered(strategies.AllReduce):
    """Gradients lie in their buckets, and stay there."""

    def ready(self, bucket: Bucket) -> None:
        """Send nothing."""


class Barrier(Gathered):
    """Sends one number when the backward pass ends: ranks in lockstep."""

    _number: Any = None

    def ready(self, bucket: Bucket) -> None:
        """Send nothing yet."""
        if self._number is None:
            self._number = bucket.gradients.new_zeros(1)

    def finish(self) -> None:
        """Meet."""
        self._group.all_reduce_mean(self._number).wait()


PARTS = {"gathered": Gathered, "barrier": Barrier}


@dataclass(frozen=True, kw_only=True)
class Point:
    """What came of one exchange of one network."""

    network: str
    batch: int
    """Of a device."""
    devices: int
    sync: str
    per_s: tuple[tuple[float, ...], ...]
    """Samples a second of each rank in each round."""
    shares: tuple[float, ...]
    """Of each round: the slowest rank's by that of the slowest alone."""
    alike: bool
    """Whether all ranks end with the same weights."""


def work(config: str) -> None:
    """The life of a rank."""
    args = argparse.Namespace(**json.loads(config))
    local = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local}" if args.device == "cuda" else "cpu"
    if args.device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[local * args.threads : (local + 1) * args.threads])
    group = join(device, JOIN_S)
    for case in args.cases:
        for point in points(args, case, device, group):
            if group.rank == 0:
                print(text(point), flush=True)
                with Path(args.results).open("a") as file:
                    file.write(json.dumps(asdict(point)) + "\n")
    group.close()


def points(args: Any, case: str, device: str, group: Group) -> Iterator[Point]:
    """Of every exchange, when all rounds of a network are over."""
    name, batch = case.split(":")[0], int(case.split(":")[1])
    programs = {
        sync: built(args, name, batch, sync, device, group) for sync in (NOTHING, *args.syncs)
    }
    program, placed = programs[NOTHING]
    a_step = timed(program, placed, WARM_STEPS) / WARM_STEPS
    steps = group.broadcast_object(max(1, round(args.seconds / a_step)))
    per_s: dict[str, list[tuple[float, ...]]] = {sync: [] for sync in programs}
    order = list(programs)
    for _ in range(args.rounds):
        for sync in order:
            program, placed = programs[sync]
            own = batch * steps / timed(program, placed, steps)
            per_s[sync].append(tuple(group.all_gather_object(own)))
        order.append(order.pop(0))  # what runs before may leave a device warm
    for sync, (program, _) in programs.items():
        marks = group.all_gather_object(program.fingerprint())
        rounds = zip(per_s[sync], per_s[NOTHING], strict=True)
        yield Point(
            network=name,
            batch=batch,
            devices=group.size,
            sync=sync,
            per_s=tuple(per_s[sync]),
            shares=tuple(min(one) / min(alone) for one, alone in rounds),
            alike=len(set(marks)) == 1,
        )
    for program, _ in programs.values():
        program.close()


def built(
    args: Any, name: str, batch: int, sync: str, device: str, group: Group
) -> tuple[Any, Any]:
    """A program that has made its first steps, and its minibatch."""
    network = networks.build(name)
    among: Group = SingleProcessGroup() if sync == NOTHING else group
    request = BuildRequest(
        network=network,
        work=TrainSteps(network=name, batch_per_device=batch, learning_rate=1e-4, momentum=0.9),
        placement=Placement(device=args.device, devices=among.size),
        program=ProgramSettings(
            framework=args.framework,
            precision=args.precision,
            layout=args.layout,
            sync="all-reduce" if sync in PARTS else sync,
        ),
        sync=made(sync, among),
        device=device,
        threads=args.threads,
        group=among,
    )
    program: Any = entry(args.framework).load().build(request)
    placed = program.place(random_batch(network, batch))
    if isinstance(program, SupportsCompilation):
        program.compile(placed)
    program.load(network.draw(0))
    timed(program, placed, WARM_STEPS)
    return program, placed


def made(name: str, among: Group) -> GradientSync:
    """A gradient synchronization strategy, or a part of one."""
    return PARTS[name](among) if name in PARTS else strategies.make(name, among)


def timed(program: Any, placed: Any, steps: int) -> float:
    """Seconds of so many steps, begun by all ranks together."""
    program.synchronize()
    dist.barrier()
    program.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        program.train_step(placed)
    program.synchronize()
    return time.perf_counter() - start


def text(point: Point) -> str:
    """A line for a point."""
    slowest = [min(ranks) for ranks in point.per_s]
    text = (
        f"{point.network}, {point.batch} a device, {point.devices} devices, {point.sync}: "
        f"{mean(slowest):,.1f} samples/s ({min(slowest):,.1f} to {max(slowest):,.1f}) of the "
        "slowest device"
    )
    if point.sync == NOTHING:
        return text
    shares = [100 * share for share in point.shares]
    text += f", {mean(shares):.2f} % ({min(shares):.2f} to {max(shares):.2f})"
    if point.sync in PARTS:
        return text
    return f"{text}; {'same weights' if point.alike else 'WEIGHTS DIFFER'}"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="little-cnn:64", help="network:batch size per device, …")
    parser.add_argument(
        "--syncs", default="all-reduce", help="besides none; gathered and barrier too"
    )
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--framework", default="pytorch")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nchw")
    parser.add_argument("--threads", type=int, default=1, help="cores of each device on a CPU")
    parser.add_argument("--seconds", type=float, default=0.8, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Measure and print; what comes out does not change the exit code."""
    args = arguments(given)
    there = torch.cuda.device_count() if args.device == "cuda" else len(os.sched_getaffinity(0))
    wanted = args.devices * (1 if args.device == "cuda" else args.threads)
    if there < wanted:
        print(f"absent: {wanted} {'GPUs' if args.device == 'cuda' else 'cores'}; there are {there}")
        return 2
    args.cases, args.syncs = args.cases.split(","), args.syncs.split(",")
    with tempfile.TemporaryDirectory() as folder:
        args.results = str(Path(folder, "points"))
        failed = launch(work, json.dumps(vars(args)), args.devices)
        found = Path(args.results)
        lines = found.read_text().splitlines() if found.exists() else []
    if args.json:
        settings = {k: v for k, v in vars(args).items() if k not in ("json", "results")}
        plain: dict[str, Any] = {"schema": 1, "settings": settings, "torch": torch.__version__}
        plain["points"] = [json.loads(line) for line in lines]
        Path(args.json).write_text(json.dumps(plain))
    if failed:
        print(f"ranks failed, with exit codes {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
