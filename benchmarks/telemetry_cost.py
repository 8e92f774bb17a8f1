r"""Cost of telemetry for a training run, in processor time and throughput.

First every reading is timed alone, in wall-clock and in processor time (the driver sleeps in some).
Then one program trains in one process, with and without telemetry, interleaved: blocks of four
windows of some seconds, on off off on or the reverse in random order, each window long enough for
several readings. Printed for each rate: the sampler's fraction of the process's processor time, and
the ratio of throughputs, with over without, with Student's interval over the blocks.

    python benchmarks/telemetry_cost.py                                       # CPU, LittleCNN
    python benchmarks/telemetry_cost.py --device cuda:0 --network resnet-50 --batch 64 \
        --precision bf16 --every 0.5,0.1 --seconds 48 --json telemetry.json

The goal: under 1 % of the processor time and no throughput.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from ab_comparison import Side, cubemesh_side, random_batch
from cubemesh import networks
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.measure.telemetry.gpu import GpuReader
from cubemesh.measure.telemetry.host import HostReader
from cubemesh.measure.telemetry.telemetry import EVERY_S, Meter, Telemetry, open_meters
from cubemesh.measure.timing.interleaved_ab import ORDERS, ratio_of
from cubemesh.measure.timing.timer import Stopwatch
from cubemesh.parallel import strategies
from cubemesh.schema.record import AGAINST, Window
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from in_memory_log import InMemoryLog

RATIO_GOAL, SHARE_GOAL = 0.99, 1.0
WARM_S = 3.0


@dataclass(frozen=True, kw_only=True)
class QueryCost:
    """What it costs to query one sensor once."""

    name: str
    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What sampling at one rate costs."""

    every_s: float
    blocks: int
    readings: int
    cpu_percent: float
    """The sampler's CPU time in percent of the process's, in sampled windows."""
    ratio: float
    """Throughput sampled over not sampled."""
    low: float
    high: float

    @property
    def reached(self) -> bool:
        """Whether both goals are reached."""
        return self.high >= RATIO_GOAL and self.cpu_percent < SHARE_GOAL


def queries(meters: Sequence[Meter], times: int = 20) -> list[QueryCost]:
    """Each query of a GPU; the other meters as a whole."""
    calls: dict[str, Callable[[], object]] = {"processors and memory of the run": HostReader().read}
    for meter in meters:
        if isinstance(meter, GpuReader):
            calls |= meter.costs()
        elif meter.read():
            calls[" ".join(meter.read())] = meter.read
    return [_query_cost(name, query, times) for name, query in calls.items()]


def _query_cost(name: str, query: Callable[[], object], times: int) -> QueryCost:
    query()
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(times):
        query()
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    return QueryCost(name=name, wall_ms=1e3 * wall / times, cpu_ms=1e3 * cpu / times)


def cost(
    side: Side,
    *,
    samples: int,
    meters: Sequence[Meter],
    every_s: float,
    seconds: float,
    window_s: float,
) -> Cost:
    """Alternate sampled and unsampled windows of `side` for about `seconds`, three blocks at
    least."""
    watch = Stopwatch(
        step=side.step,
        synchronize=side.synchronize,
        clock=time.perf_counter,
        samples_per_step=samples,
        log=InMemoryLog(),
    )
    steps = max(1, math.ceil(window_s / _step_s(watch)))
    order = random.Random(0)
    windows: list[Window] = []
    readings, cost_s, used_s = 0, 0.0, 0.0
    for block in range(max(3, round(seconds / window_s / 4))):
        marks = ("instance-0", f"block-{block}")
        for sampled in order.choice(ORDERS):
            if not sampled:
                windows.append(watch.window("measure", steps, marks))
                continue
            telemetry = Telemetry(
                InMemoryLog(), torch.get_num_threads(), every_s=every_s, meters=meters
            )
            before_s = time.process_time()
            with telemetry:
                windows.append(watch.window(AGAINST, steps, marks))
            used_s += time.process_time() - before_s
            cost_s += telemetry.cost_s
            readings += len(telemetry.readings)
    found = ratio_of(windows)
    assert found.low is not None
    assert found.high is not None
    return Cost(
        every_s=every_s,
        blocks=len(windows) // 4,
        readings=readings,
        cpu_percent=100 * cost_s / used_s,
        ratio=found.value,
        low=found.low,
        high=found.high,
    )


def _step_s(watch: Stopwatch) -> float:
    """Seconds of a step after some seconds of warm-up. The first step is not in them: it tries
    algorithms for seconds."""
    window = watch.window("warm-up", 1)
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_S:
        window = watch.window("warm-up", max(1, math.ceil(0.2 / window.step_s)))
    return window.step_s


def built(args: argparse.Namespace) -> Side:
    """The program that is trained."""
    network = networks.build(args.network, args.image_size, None)
    request = BuildRequest(
        network=network,
        work=TrainSteps(network=args.network, batch_per_device=args.batch),
        placement=Placement(),
        program=ProgramSettings(precision=args.precision),
        sync=strategies.make("none"),
        device=args.device,
        threads=args.threads or torch.get_num_threads(),
    )
    return cubemesh_side("pytorch", request, random_batch(network, args.batch))


def uuid_of(device: str) -> str | None:
    """The UUID of a CUDA device as NVML has it; None for the CPU."""
    if device == "cpu":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].replace("%", "%%"))
    parser.add_argument("--network", default="little-cnn")
    parser.add_argument("--image-size", type=int, help="pixels; the network's own unless given")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, help="PyTorch's own choice unless given")
    parser.add_argument("--every", default=f"{EVERY_S:g},0.1", help="seconds between readings")
    parser.add_argument("--seconds", type=float, default=48.0, help="of measuring, for each rate")
    parser.add_argument("--window", type=float, default=2.0, help="seconds of a window")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print; the exit code is always 0."""
    args = arguments()
    side = built(args)
    meters = open_meters(uuid_of(args.device))
    query_costs = queries(meters)
    print("one query takes, by the clock and in processor time:")
    for one in query_costs:
        print(f"  {one.wall_ms:9.3f} ms  {one.cpu_ms:9.3f} ms  {one.name}")
    for meter in meters:
        for name, why in meter.missing.items():
            print(f"  not read: {name} ({why})")
    print(f"{args.network}, batch size {args.batch}, {args.precision} on {args.device}:")
    costs = []
    for every_s in map(float, args.every.split(",")):
        found = cost(
            side,
            samples=args.batch,
            meters=meters,
            every_s=every_s,
            seconds=args.seconds,
            window_s=max(args.window, 4 * every_s),
        )
        costs.append(found)
        goal = "reaches" if found.reached else "misses"
        print(
            f"  every {every_s:g} s: {found.cpu_percent:.3f} % of the processor time; throughput "
            f"sampled / not sampled {found.ratio:.4f} (95 % interval {found.low:.4f} to "
            f"{found.high:.4f}), {found.blocks} blocks, {found.readings} readings; {goal} "
            f"under {SHARE_GOAL:g} % and an interval that includes or exceeds {RATIO_GOAL}",
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            result = {"schema": 1, "device": args.device, "network": args.network}
            result |= {"batch": args.batch, "precision": args.precision, "torch": torch.__version__}
            result |= {
                "queries": [asdict(q) for q in query_costs],
                "costs": [asdict(c) for c in costs],
            }
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
