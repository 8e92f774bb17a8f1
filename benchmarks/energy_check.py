"""Agreement of a GPU's energy counter and its integrated power, by length of the window.

Trains a network without a pause and takes windows of several lengths, each ended by a
synchronization. For each it prints the joules by the counter, the joules by integration of the
power readings, their difference, or that the window is not measurable and why, as a record would.
The goal: 5 % over windows of 5 s and more, and no figure below the sensor's minimum.

    python benchmarks/energy_check.py --json energy.json                      # one minute, a GPU
    python benchmarks/energy_check.py --every 0.1 --lengths 1,2,5,10
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass

import torch

from ab_comparison import Side
from cubemesh.measure.energy.energy import INTEGRATED, energy
from cubemesh.measure.energy.sensors import Need
from cubemesh.measure.telemetry.gpu import ENERGY, GpuReader
from cubemesh.measure.telemetry.telemetry import EVERY_S, Telemetry, open_meters
from in_memory_log import InMemoryLog
from telemetry_cost import built, uuid_of

GOAL, FROM_S = 0.05, 5.0
WARM_S = 4.0
QUEUED_S = 0.1
"""Steps are queued for so long before the host waits for them."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One window."""

    seconds: float
    steps: int
    counter_joules: float | None
    integrated_joules: float | None
    reason: str = ""
    """Why there are no joules."""

    @property
    def difference(self) -> float | None:
        """Integrated over counted, less 1."""
        if self.counter_joules is None or self.integrated_joules is None:
            return None
        return self.integrated_joules / self.counter_joules - 1

    def reached(self, need: Need) -> bool:
        """Whether this window is as it should be: agreeing where it is long, silent where it is
        shorter than the sensor needs."""
        if self.seconds < need.seconds:
            return self.counter_joules is None and bool(self.reason)
        if self.seconds < FROM_S:
            return True
        return self.difference is not None and abs(self.difference) <= GOAL


def trained(side: Side, seconds: float, step_s: float) -> tuple[float, float, int]:
    """Train for so long; from when to when by `time.perf_counter()`, and how many steps."""
    chunk = max(1, math.ceil(min(QUEUED_S, seconds / 2) / step_s))
    side.synchronize()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(chunk):
            side.step()
        side.synchronize()
        steps += chunk
    return start, time.perf_counter(), steps


def text(one: Checked) -> str:
    """One line."""
    if one.counter_joules is None and one.integrated_joules is None:
        return f"{one.seconds:7.2f} s  {one.reason}"
    shown = [
        "–" if joules is None else f"{joules:10.1f} J"
        for joules in (one.counter_joules, one.integrated_joules)
    ]
    share = "–" if one.difference is None else f"{100 * one.difference:+6.2f} %"
    return f"{one.seconds:7.2f} s  counter {shown[0]}  integrated {shown[1]}  {share}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--lengths", default="0.05,0.5,1,2,5,10", help="seconds of windows")
    parser.add_argument("--times", type=int, default=2, help="windows of each length")
    parser.add_argument("--every", type=float, default=EVERY_S, help="seconds between readings")
    parser.add_argument("--json", metavar="FILE", help="write windows and readings there as well")
    return parser.parse_args()


def main() -> int:
    """Measure and print; 1 where a window is not as it should be, 2 without a GPU."""
    args = arguments()
    if not torch.cuda.is_available():
        print("absent: a GPU that PyTorch can use")
        return 2
    meters = open_meters(uuid_of(args.device))
    gpu = next((m for m in meters if isinstance(m, GpuReader)), None)
    if gpu is None or not gpu.power:
        print(f"absent: a power reading ({gpu.missing if gpu else 'no NVML'})")
        return 2
    need = gpu.needs()
    print(f"{gpu.name}, power {gpu.power}, a reading every {args.every:g} s; {need.why}")
    side = built(args)
    start, end, steps = trained(side, WARM_S, WARM_S)
    step_s = (end - start) / steps
    lengths = [float(length) for length in args.lengths.split(",") for _ in range(args.times)]
    with Telemetry(InMemoryLog(), 1, every_s=args.every, meters=meters) as telemetry:
        trained(side, 1.0, step_s)  # so that the first window has a reading before it
        windows = [trained(side, length, step_s) for length in lengths]
        trained(side, 2 * args.every, step_s)
    checked = []
    for start, end, steps in windows:
        found = energy(
            telemetry.sampled,
            [(start, end)],
            steps * args.batch,
            gpu_needs=need,
            every_s=args.every,
            missing=gpu.missing,
        )
        value = {name: figure.value for name, figure in found.figures.items()}
        checked.append(
            Checked(
                seconds=end - start,
                steps=steps,
                counter_joules=value.get(ENERGY),
                integrated_joules=value.get(INTEGRATED),
                reason="; ".join(u.why for u in found.unmeasured),
            )
        )
        print(text(checked[-1]))
    wrong = [one for one in checked if not one.reached(need)]
    print(
        f"{len(checked) - len(wrong)} of {len(checked)} windows are as they should be: within "
        f"{100 * GOAL:.0f} % from {FROM_S:g} s on, not measurable below {need.seconds:g} s"
    )
    if args.json:
        with open(args.json, "w") as file:
            spans = [{"start": s, "end": e, "steps": n} for s, e, n in windows]
            json.dump(
                {"schema": 1, "gpu": gpu.name, "power": gpu.power, "windows": spans}
                | {"readings": telemetry.sampled},
                file,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
