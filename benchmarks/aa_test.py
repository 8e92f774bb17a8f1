"""False positives and misses of the two ways to compare programs.

Three trials, each repeat of which is a whole comparison with the noise of this machine:

    hot       a program against itself, A/B interleaved in one process (`run … --against`)
    planted   the same, but B works 3 % of the measured step longer: it must be reported as slower
    cold      a program against itself in fresh processes, three for each side (`compare A B`)

The goals: of 200 hot and of 200 cold repeats at most 18 are reported as different, of 100 planted
ones at least 90 as slower. The program is LittleCNN in PyTorch on one thread. The 3 % are work:
each of B's steps continues until this thread's processor time has grown by 3 % of what that step
took, in processor time too, so that other programs stretch both alike.

    python benchmarks/aa_test.py --keep aa.jsonl --minutes 20

makes repeats of each trial in turn, up to the number asked for, and appends their windows to the
file; the same command continues. Without `--minutes` it ends when all are done. The output is
always computed from the windows of the whole file, by the current methods: `--minutes 0` only
evaluates. All of it is niced. A hot repeat measures one to four seconds and a planted one up to two
minutes, each after some seconds of building and warm-up; a cold one takes six processes of a second
or two: 40 minutes in all on a quiet machine, and many hours on one whose windows differ by a tenth,
where each interval needs the longest time. With spare cores several may run at once, each with its
own `--keep`, `taskset` and XDG_RUNTIME_DIR (which has the locks); join the files with `cat`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ab_comparison import random_batch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.machines import probe
from cubemesh.measure.timing.interleaved_ab import Side, alternate, ratio_of
from cubemesh.parallel import strategies
from cubemesh.runs import Executor
from cubemesh.schema import Budget, Placement, ProgramSettings, RunSpec, TrainSteps, Window
from cubemesh.schema.comparison import Difference, Ratio
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.store import Store
from cubemesh.store.run_statistics import ratio_of_runs
from cubemesh.training.evaluation import wilson_interval
from in_memory_log import InMemoryLog

GOALS = {"hot": (200, 18), "planted": (100, 90), "cold": (200, 18)}
"""Trial → (repeats, the most that may be reported as different, or least of `planted`)."""
PLANTED = 0.03
RUNS = 3
"""Fresh processes of each side of a cold repeat."""
IMAGE_SIZE, BATCH = 16, 1
HOT = Budget(
    steps=1, seconds=0.5, warmup_seconds=4.0, target_ci=0.012, max_seconds=2.0, instances=6
)
PLANTED_EFFORT = dataclasses.replace(HOT, max_seconds=60.0)
COLD = Budget(steps=6, seconds=0.4, windows=8, warmup_seconds=2.0, repeats=2 * RUNS)
"""A and B alternate among the repeats of one spec."""
Line = dict[str, Any]


def main() -> None:
    """Run the missing repeats, then evaluate all; the exit code is always 0."""
    args = arguments()
    os.nice(args.nice)
    deadline = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    lines = read(args.keep)
    missing = {t: args.repeats.get(t, n) - count(lines, t) for t, (n, _) in GOALS.items()}
    with open(args.keep, "a") as file:
        for line in repeats(missing, args.folder):
            if deadline is not None and time.monotonic() > deadline:
                break
            made = line()
            lines.append(made)
            file.write(json.dumps(made) + "\n")
            file.flush()
            print(text(made), flush=True)
    for trial in GOALS:
        print(summary(trial, lines))


def repeats(missing: dict[str, int], folder: str) -> Iterator[Callable[[], Line]]:
    """The missing repeats, the trials interleaved."""
    trials = {"hot": hot, "planted": planted, "cold": lambda: cold(folder)}
    for turn in range(max(0, *missing.values())):
        yield from (trials[t] for t, left in missing.items() if turn < left)


def hot() -> Line:
    """LittleCNN against itself in this process."""
    return alternated("hot", HOT, 0.0)


def planted() -> Line:
    """LittleCNN against one that works longer."""
    return alternated("planted", PLANTED_EFFORT, PLANTED)


def alternated(trial: str, budget: Budget, more: float) -> Line:
    """Build instances of both and alternate them, B working `more` of a step longer."""
    network = networks.build("little-cnn", IMAGE_SIZE, None)
    batch = random_batch(network, BATCH)
    request = BuildRequest(
        network=network,
        work=TrainSteps(network="little-cnn", batch_per_device=BATCH),
        placement=Placement(threads=1),
        program=ProgramSettings(),
        sync=strategies.make("none"),
        device="cpu",
        threads=1,
    )
    steps = [step_of(request, batch) for _ in range(2 * budget.instances)]
    pairs = [
        (side(a), side(longer(b, more) if more else b))
        for a, b in zip(steps[::2], steps[1::2], strict=True)
    ]
    found = alternate(pairs, budget=budget, log=InMemoryLog(), seed=time.time_ns())
    return {"trial": trial, "planted": more, "windows": to_plain(found.windows)}


def step_of(request: BuildRequest, batch: Batch) -> Callable[[], None]:
    """A training step of a program of its own."""
    program = entry("pytorch").load().build(request)
    program.load(request.network.draw(0))
    return lambda: program.train_step(program.place(batch))


def side(step: Callable[[], None]) -> Side:
    """A step on the CPU has ended when it returns."""
    return Side(step=step, synchronize=lambda: None)


def longer(step: Callable[[], None], more: float) -> Callable[[], None]:
    """`step`, and then work for `more` times the processor time that it took."""

    def worked() -> None:
        start = time.thread_time()
        step()
        end = time.thread_time()
        end += more * (end - start)
        while time.thread_time() < end:
            pass

    return worked


def cold(folder: str) -> Line:
    """LittleCNN in six fresh processes, as `cubemesh run` measures it."""
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=BATCH, image_size=IMAGE_SIZE),
        placement=Placement(device="cpu", threads=1),
        budget=COLD,
    )
    path = Path(folder, f"cold-{time.time_ns()}.sqlite")
    with Store.open(str(path)) as store, Executor(store, machine=probe()) as executor:
        records = executor.run([spec])
    path.unlink()
    failed = [r.outcome.message for r in records if not r.ok]
    if failed:
        raise SystemExit(f"a run of the cold trial failed: {failed[0]}")
    return {"trial": "cold", "runs": [to_plain(r.measured) for r in records]}


def ratio(line: Line) -> Ratio:
    """Result of the comparison of one repeat."""
    if line["trial"] != "cold":
        return ratio_of(_windows(line["windows"]))
    runs = [_windows(run) for run in line["runs"]]
    order = [i % 4 in (1, 2) for i in range(len(runs))]  # A B B A A B: drifts cancel
    sides = [
        [r for r, is_b in zip(runs, order, strict=True) if is_b is which] for which in (False, True)
    ]
    return ratio_of_runs(*sides, stored=None)


def _windows(plain: list[Any]) -> list[Window]:
    return [from_plain(Window, window) for window in plain]


def text(line: Line) -> str:
    """One line for a repeat."""
    found = ratio(line)
    return (
        f"{line['trial']:8} {found.value:.4f} ({found.low:.4f} to {found.high:.4f})  "
        f"{found.verdict.value}"
    )


def summary(trial: str, lines: list[Line]) -> str:
    """How often a difference was reported, with Wilson's interval of that fraction."""
    ratios = [ratio(line) for line in lines if line["trial"] == trial]
    wanted, goal = GOALS[trial]
    if not ratios:
        return f"{trial:8} no repeat yet of {wanted}"
    sought = {Difference.SLOWER} if trial == "planted" else {Difference.SLOWER, Difference.FASTER}
    reported = sum(r.verdict in sought for r in ratios)
    share = wilson_interval(reported, len(ratios))
    widths = sorted(r.half_width or 0.0 for r in ratios)
    word, bound = ("slower", "at least") if trial == "planted" else ("different", "at most")
    return (
        f"{trial:8} {reported} of {len(ratios)} reported as {word}: "
        f"{100 * reported / len(ratios):.1f} % "
        f"({100 * share.low:.1f} to {100 * share.high:.1f}); the goal is {bound} {goal} "
        f"of {wanted}; the interval is ± {100 * widths[len(widths) // 2]:.2f} % in the median"
    )


def count(lines: list[Line], trial: str) -> int:
    """Repeats of a trial to use."""
    return sum(line["trial"] == trial for line in lines)


def read(path: Path) -> list[Line]:
    """The repeats in a file, none where it does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, required=True, metavar="FILE", help="of all windows")
    parser.add_argument("--minutes", type=float, help="begin no repeat later than this")
    parser.add_argument("--nice", type=int, default=5, help="added to the niceness; 5")
    for trial, (wanted, _) in GOALS.items():
        parser.add_argument(f"--{trial}", type=int, default=wanted, help=f"repeats; {wanted}")
    args = parser.parse_args()
    args.repeats = {trial: getattr(args, trial) for trial in GOALS}
    args.folder = tempfile.mkdtemp(prefix="cubemesh-a-against-a-")
    return args


if __name__ == "__main__":
    main()
