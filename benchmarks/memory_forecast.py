"""Error of the memory forecast relative to the peak of training on a GPU.

For each (network, batch size, precision, layout) the program trains a few steps, in which cuDNN
tries its algorithms with workspaces of every size; then PyTorch's peak counter is reset and a few
steps more are made. The peak is compared with `networks/memory.py`. Neither includes the CUDA
context. Points whose forecast exceeds the memory are left out and listed.

    python benchmarks/memory_forecast.py --json memory.json

The goal is a forecast within 15 % of the peak for nine in ten points. Without a GPU it prints
`absent` and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from ab_comparison import random_batch
from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.networks.memory import forecast
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

WITHIN, GOAL = 0.15, 0.9
WARMUP_STEPS, STEPS = 3, 3
MARGIN = 0.92
"""Share of the free memory that a forecast may reach for a point to be tried."""
NETWORKS = (
    *("little-cnn", "alexnet", "overfeat", "vgg16", "googlenet", "inception-bn", "inception-v3"),
    *("resnet-18", "resnet-50", "resnet-152"),
)
BATCHES = (16, 32, 64, 128, 256, 512)
GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of the grid."""

    network: str
    batch: int
    precision: str
    layout: str
    forecast_bytes: int
    peak_bytes: int | None = None
    left_out: str = ""

    @property
    def error(self) -> float | None:
        """Forecast over peak, less one."""
        return None if self.peak_bytes is None else self.forecast_bytes / self.peak_bytes - 1


def measured(name: str, batch: int, precision: str, layout: str, device: str) -> Point:
    """Train a few steps and read the peak."""
    network = networks.build(name)
    expected = forecast(network, batch, precision, device="cuda", layout=layout).total_bytes
    point = Point(
        network=name, batch=batch, precision=precision, layout=layout, forecast_bytes=expected
    )
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if expected > MARGIN * free:
        return Point(**{**asdict(point), "left_out": f"{free / GB:.0f} GB are free"})
    try:
        return Point(**{**asdict(point), "peak_bytes": peak_bytes(network, batch, point, device)})
    except torch.cuda.OutOfMemoryError:
        return Point(**{**asdict(point), "left_out": "out of memory"})


def peak_bytes(network: networks.Network, batch: int, point: Point, device: str) -> int:
    """Most bytes PyTorch held at once in steps after the first."""
    request = BuildRequest(
        network=network,
        work=TrainSteps(network=network.name, batch_per_device=batch),
        placement=Placement(),
        program=ProgramSettings(precision=point.precision, layout=point.layout),
        sync=strategies.make("none"),
        device=device,
        threads=torch.get_num_threads(),
    )
    program = entry("pytorch").load().build(request)
    try:
        program.load(network.draw(0))
        placed = program.place(random_batch(network, batch))
        for steps in (WARMUP_STEPS, STEPS):
            torch.cuda.reset_peak_memory_stats(device)
            for _ in range(steps):
                program.train_step(placed)
            program.synchronize()
        return torch.cuda.max_memory_allocated(device)
    finally:
        program.close()


def share_within(points: Iterable[Point]) -> tuple[int, int]:
    """(points within 15 %, points measured)."""
    errors = [p.error for p in points if p.error is not None]
    return sum(abs(e) <= WITHIN for e in errors), len(errors)


def text(point: Point) -> str:
    """A line of the table."""
    line = (
        f"{point.network:13} {point.batch:5}  {point.precision}  {point.layout} "
        f"{point.forecast_bytes / GB:10.3f} "
    )
    if point.error is None or point.peak_bytes is None:
        return f"{line} left out: {point.left_out}"
    mark = "" if abs(point.error) <= WITHIN else "  off"
    return f"{line}{point.peak_bytes / GB:10.3f}  {point.error:+7.1%}{mark}"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, between commas")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--precisions", default="fp32,tf32,bf16,fp16")
    parser.add_argument("--layouts", default="nchw")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", metavar="FILE", help="write the points there as well")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; the result does not change the exit code."""
    args = arguments(given)
    if not torch.cuda.is_available():
        print(
            "absent: a GPU that PyTorch can use; the forecast is compared with its count of memory"
        )
        return 2
    print(f"{torch.cuda.get_device_name(args.device)}, PyTorch {torch.__version__}; GB")
    print("network       batch  prec. layout   forecast       peak    error")
    points = []
    grid = itertools.product(
        args.networks.split(","),
        args.precisions.split(","),
        args.layouts.split(","),
        map(int, args.batches.split(",")),
    )
    for name, precision, layout, batch in grid:
        points.append(measured(name, batch, precision, layout, args.device))
        print(text(points[-1]), flush=True)
    within, count = share_within(points)
    share = within / count if count else 0.0
    print(f"{within} of {count} within {WITHIN:.0%} ({share:.1%}; the goal is {GOAL:.0%})")
    if args.json:
        with open(args.json, "w") as file:
            listed = [{**asdict(p), "error": p.error} for p in points]
            result = {"schema": 1, "within": within, "measured": count, "points": listed}
            json.dump({**result, "device": torch.cuda.get_device_name(args.device)}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
