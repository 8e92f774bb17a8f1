r"""Throughput of cubemesh's all-reduce and of stock DistributedDataParallel, by the same timer.

Both train the same network on 1, 2, 4 … devices with the same batch size per device and resident
data. They are interleaved in the same processes, in windows of some steps:

    free          one synchronization at the end of a window, as in training
    synchronized  the host waits for the device after every step, as in many benchmarks

The second prevents the host from queueing ahead, so a step that is bound by launching, or by ranks
that wait for one another, looks slower than it trains. All devices are also measured at once
without synchronization: efficiency is relative to the slowest of them too. On one device stock is
the bare module.

    python benchmarks/ddp_peer.py --device cuda --network resnet-50 --batch 256 --precision bf16 \
        --layout nhwc --compile --devices 1,2,4,8 --json ddp.json
    python benchmarks/ddp_peer.py --threads 1 --network little-cnn --batch 64 --devices 1,2

Throughput is the samples of all ranks over the time from the first start to the last end of a
window; its interval comes from resampling windows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # ranks are forked: no CUDA before

import torch
import torch.distributed as dist

from ab_comparison import random_batch
from cubemesh import networks
from cubemesh.frameworks.pytorch import join, launch
from cubemesh.measure.merge_ranks import merge_lockstep
from cubemesh.schema import Window
from cubemesh.statistics import median, throughput, throughput_interval
from ddp_programs import LOW_PRECISION, our_step, stock_step
from handwritten import NETWORKS

STOCK, OURS, ALONE = "stock DDP", "all-reduce", "each alone"
MODES = ("free", "synchronized")
JOIN_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """One program on so many devices, timed in one way."""

    devices: int
    program: str
    mode: str
    step_ms: float
    """Median over windows."""
    samples_per_s: float
    low: float
    high: float
    efficiency: float | None
    """Against the same program on one device."""
    slowest_alone_per_s: float | None
    """Of the devices alone, all at once."""
    rank_windows: list[list[tuple[float, float]]]
    """Of each rank (start, seconds) of each window, on the host's clock."""


def work(config: str) -> None:
    """The life of a rank: build all programs, time each in turn, leave the windows in a file."""
    args = argparse.Namespace(**json.loads(config))
    local = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local}" if args.device == "cuda" else "cpu"
    if args.device == "cuda":
        torch.cuda.set_device(device)
    else:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[local * args.threads : (local + 1) * args.threads])
    torch.set_num_threads(args.threads)
    group = join(device, JOIN_S)
    batch = random_batch(networks.build(args.network), args.batch)
    programs = {
        OURS: our_step(args, batch, device, group),  # first: it sets precision for the process
        STOCK: stock_step(args, batch, device, together=group.size > 1),
    }
    if group.size > 1:
        programs[ALONE] = stock_step(args, batch, device, together=False)
    found = {
        f"{name}|{mode}": spans
        for (name, mode), spans in timed(args, programs, device, group).items()
    }
    Path(args.folder, f"{group.size}-{group.rank}.json").write_text(json.dumps(found))
    group.close()


def timed(
    args: Any, programs: dict[str, Callable[[], None]], device: str, group: Any
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """(start, seconds) of every window of each program in each mode, in turn."""

    def wait() -> None:
        if args.device == "cuda":
            torch.cuda.synchronize()

    def window(step: Callable[[], None], steps: int, mode: str) -> tuple[float, float]:
        dist.barrier()
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            step()
            if mode == "synchronized":
                wait()
        wait()
        return start, time.perf_counter() - start

    steps = {}
    for name, step in programs.items():
        window(step, args.warm_steps, "free")
        _, took = window(step, args.warm_steps, "free")
        most = args.seconds / len(programs) / len(MODES) / args.windows
        steps[name] = group.broadcast_object(max(1, round(most / (took / args.warm_steps))))
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(args.windows):
        for name, step in programs.items():
            for mode in MODES:
                found.setdefault((name, mode), []).append(window(step, steps[name], mode))
    found["steps", ""] = [(steps[name], 0.0) for name in programs]
    return found


def points(args: Any, devices: int, one: dict[tuple[str, str], float]) -> Iterator[Point]:
    """What the ranks of one launch have left; `one` is each program's rate on one device."""
    reports = [
        json.loads(Path(args.folder, f"{devices}-{rank}.json").read_text())
        for rank in range(devices)
    ]
    names = [OURS, STOCK, *([ALONE] if devices > 1 else [])]
    steps = {name: int(pair[0]) for name, pair in zip(names, reports[0]["steps|"], strict=True)}
    for mode in MODES:
        slowest = None
        if devices > 1:
            alone = [
                throughput([args.batch * steps[ALONE]] * args.windows, [s for _, s in spans])
                for own in reports
                if (spans := own[f"{ALONE}|{mode}"])
            ]
            slowest = min(alone)
        for name in names:
            ranks = [own[f"{name}|{mode}"] for own in reports]
            windows = merge_lockstep(
                [
                    Window(
                        rank=rank,
                        start_s=start,
                        elapsed_s=took,
                        steps=steps[name],
                        samples=steps[name] * args.batch,
                    )
                    for rank, spans in enumerate(ranks)
                    for start, took in spans
                ]
            )
            samples, seconds = [w.samples for w in windows], [w.elapsed_s for w in windows]
            rate, interval = throughput(samples, seconds), throughput_interval(samples, seconds)
            if devices == 1:
                one[name, mode] = rate
            base = one.get((STOCK if name == ALONE else name, mode))
            yield Point(
                devices=devices,
                program=name,
                mode=mode,
                step_ms=1e3 * median([w.step_s for w in windows]),
                samples_per_s=rate,
                low=interval.low,
                high=interval.high,
                efficiency=None if base is None else rate / base / devices,
                slowest_alone_per_s=slowest,
                rank_windows=ranks,
            )


def text(point: Point) -> str:
    """A line for a point."""
    ends = f"({point.low:,.1f} to {point.high:,.1f})"
    devices = f"{point.devices} device{'' if point.devices == 1 else 's'}"
    text = (
        f"{devices:9}  {point.program:10}  {point.mode:12}  {point.step_ms:9.3f} ms a "
        f"step  {point.samples_per_s:12,.1f} samples/s {ends}"
    )
    if point.efficiency is not None and point.devices > 1:
        text += f"  efficiency {100 * point.efficiency:.1f} %"
    if point.slowest_alone_per_s is not None:
        share = point.samples_per_s / point.slowest_alone_per_s / point.devices
        text += f", vs slowest without sync {100 * share:.1f} %"
    return text


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=sorted(NETWORKS), default="little-cnn")
    parser.add_argument("--batch", type=int, default=64, help="batch size per device")
    parser.add_argument("--devices", default="1,2", help="numbers of devices, as 1,2,4,8")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="cores of each device on a CPU")
    parser.add_argument("--precision", choices=sorted(LOW_PRECISION), default="fp32")
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nchw")
    parser.add_argument("--compile", action="store_true", help="torch.compile both")
    parser.add_argument(
        "--compile-by",
        choices=["network", "segment"],
        default="network",
        help="of ours; stock's is cut at its buckets by PyTorch",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each number of devices")
    parser.add_argument("--windows", type=int, default=10, help="of each program and mode")
    parser.add_argument("--warm-steps", type=int, default=10, help="of each before it is timed")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args(given)


def why_absent(args: argparse.Namespace, counts: list[int]) -> str:
    """What is missing here; empty if nothing is."""
    most = max(counts)
    if args.device == "cuda":
        there = torch.cuda.device_count()
        return "" if there >= most else f"absent: {most} GPUs; there are {there}"
    cores = len(os.sched_getaffinity(0))
    wanted = most * args.threads
    return "" if cores >= wanted else f"absent: {wanted} cores; there are {cores}"


def main(given: list[str] | None = None) -> int:
    """Measure and print; what comes out does not change the exit code."""
    args = arguments(given)
    counts = sorted({int(n) for n in args.devices.split(",")})
    if reason := why_absent(args, counts):
        print(reason)
        return 2
    args.classes = networks.build(args.network).targets[0].classes
    one: dict[tuple[str, str], float] = {}
    found: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        args.folder = folder
        for devices in counts:
            if failed := launch(work, json.dumps(vars(args)), devices):
                print(f"{devices} devices: ranks failed, with exit codes {failed}")
                return 1
            for point in points(args, devices, one):
                print(text(point), flush=True)
                found.append(point)
    if args.json:
        plain = {"settings": vars(args), "torch": torch.__version__}
        plain["points"] = [asdict(point) for point in found]
        Path(args.json).write_text(json.dumps(plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
