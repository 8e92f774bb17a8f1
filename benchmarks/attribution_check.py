"""Attribution of a step with planted losses.

Each network is attributed unchanged, and again with one real loss:

    slow source    making a minibatch is slowed to P ms, in a thread ahead of the step: the input
                   stall must be max(0, P − step), within 10 % (or 2 % of the step, where that is 0)
    slow hand-over `place` sleeps 5 ms: host must grow by 5 ± 0.5 ms
    slow launches  two layers sleep before their work: launch gaps must grow by what the step grew
                   by, within 10 %: the sleep, and what follows it with a cold cache

and without any, `unattributed` must stay within 2 % of the step. Each loss is compared with the
same step without it and with the same input: by a thread, or through the same `place`. Sleeps and
minibatches count with their real duration. A GPU with queued work hides what the host does; then
nothing is lost and nothing must be found: planted sleeps are only checked where they made the step
longer.

    python benchmarks/attribution_check.py                          # CPU: LittleCNN 8, ResNet-50
    python benchmarks/attribution_check.py --device cuda:0 --json attribution.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.data import Source, open_for
from cubemesh.data.feed import Feed
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.measure.attribution.contention import CompetitionReader
from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.measure.telemetry.run_queue import OwnThread
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.measure.timing.timer import Lockstep, measure
from cubemesh.parallel import strategies
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.schema.spec import Budget, Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.statistics import median
from in_memory_log import InMemoryLog

MOST_UNATTRIBUTED = 0.02
HAND_OVER_S, HAND_OVER_WITHIN_S = 5e-3, 0.5e-3
LAUNCH_S = 2e-3
"""What each of two layers sleeps."""
WITHIN = 0.1
FLOOR = 0.02
"""Of the step: what is smaller is noise."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network and batch size, with the program for it."""

    network: str
    batch: int
    image_size: int | None = None
    precision: str = "fp32"
    layout: str = "nchw"
    data_location: str = "host"
    seconds: float = 4.0


POINTS = {
    "cpu": (
        Point(network="little-cnn", batch=8),
        Point(network="resnet-50", batch=16, image_size=64, seconds=15.0),
    ),
    "cuda": (
        Point(network="little-cnn", batch=8),
        Point(
            network="resnet-50", batch=256, precision="bf16", layout="nhwc", data_location="device"
        ),
    ),
}
"""Kind of device → what is checked there. A large network is fed from the device where the copy of
its minibatch would take longer than its step."""


@dataclass
class Slept:
    """Counts how long was really slept."""

    seconds: float = 0.0
    times: int = 0

    def sleep(self, seconds: float) -> None:
        """Sleep, and count it."""
        start = time.perf_counter()
        time.sleep(seconds)
        self.seconds += time.perf_counter() - start
        self.times += 1

    @property
    def mean_s(self) -> float:
        """Of one sleep."""
        return self.seconds / max(1, self.times)


@dataclass(frozen=True)
class SlowSource:
    """A source whose minibatch of `batch_size` samples takes `seconds` to make."""

    source: Source
    batch_size: int
    seconds: float
    made: list[tuple[int, float, float]] = field(default_factory=list)
    """(samples, begin, end) of what was made, in order."""

    @property
    def minibatch_s(self) -> float:
        """What a whole minibatch really took, in the median over the later half of them: in the
        first ones memory is touched for the first time. One that is made in pieces takes from the
        begin of its first to the end of its last, as handing out pieces takes time too."""
        whole, samples, begin_s = [], 0, 0.0
        for count, start, end in self.made:
            begin_s = begin_s if samples else start
            samples += count
            if samples >= self.batch_size:
                whole.append(end - begin_s)
                samples = 0
        return median(whole[len(whole) // 2 :])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def batch(self, indices: Any, into: Batch | None = None) -> Batch:
        """As the source, but not before its share of `seconds` is over."""
        start = time.perf_counter()
        until = start + self.seconds * len(indices) / self.batch_size
        made = self.source.batch(indices, into)
        time.sleep(max(0.0, until - time.perf_counter()))
        self.made.append((len(indices), start, time.perf_counter()))
        return made


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Attribution of a step, in seconds."""

    step_s: float
    parts: dict[str, float]
    profiled_step_s: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the result."""

    point: str
    check: str
    wanted: str
    found: str
    passed: bool
    parts_ms: dict[str, float] = field(default_factory=dict)


class Bench:
    """One network on one device, ready to be attributed repeatedly."""

    def __init__(
        self,
        point: Point,
        device: str,
        threads: int,
        framework: str,
        group: Group | None = None,
    ) -> None:
        self.point, self.runs_ahead, self.threads = point, device != "cpu", threads
        self.group = group or SingleProcessGroup()
        self.transfers = Transfers(clock=time.perf_counter)
        ranks = self.group.size
        timed = TimedGroup(self.group, self.transfers) if ranks > 1 else self.group
        sync = "all-reduce" if ranks > 1 else "none"
        self.network = networks.build(point.network, point.image_size, None)
        work = TrainSteps(network=point.network, batch_per_device=point.batch)
        request = BuildRequest(
            network=self.network,
            work=work,
            placement=Placement(devices=ranks),
            program=ProgramSettings(
                framework=framework,
                sync="all-reduce",
                precision=point.precision,  # type: ignore[arg-type]
                layout=point.layout,  # type: ignore[arg-type]
            ),
            sync=strategies.make(sync, timed),
            device=device,
            threads=threads,
            group=timed,
        )
        needed = point.batch * ranks
        self.source = open_for(
            self.network, "synthetic", None, "train", seed=0, samples_needed=needed
        )
        self.program: Any = entry(framework).load().build(request)
        if isinstance(self.program, SupportsCompilation):
            self.program.compile(self.program.place(next(Feed(self.source, point.batch, 0))))
        self.program.load(self.network.draw(0))

    def take_apart(
        self,
        *,
        source: Source | None = None,
        threads: int = 0,
        place: Callable[[Batch], Any] | None = None,
        data_location: str | None = None,
    ) -> Taken:
        """Measure and attribute the step, with what is planted."""
        point, log = self.point, InMemoryLog()
        place = place or self.program.place
        group, own = self.group, OwnThread()
        feed = Feed(
            source or self.source,
            point.batch,
            0,
            threads=threads,
            rank=group.rank,
            ranks=group.size,
        )
        with closing(feed):
            take: Callable[[], Any] = feed.__next__
            if (data_location or point.data_location) == "device":
                batch = next(feed)
                placed = self.program.place(batch)
                own_place = place
                take = lambda: batch  # noqa: E731
                place = (
                    (lambda batch: placed)
                    if own_place == self.program.place
                    else (lambda batch: (own_place(batch), placed)[1])
                )
            steps = StampedSteps(
                take=take,
                place=place,
                queue=self.program.train_step,
                clock=self.program.clock,
                exchanged=self.transfers.cut,
                thread=own.read if own.counts_delay else None,
                compete=CompetitionReader(self.threads, fed=threads > 0).read
                if own.counts_delay
                else None,
                runs_ahead=self.runs_ahead,
            )
            attributed = StepProfiler(
                program=self.program,
                steps=steps,
                samples_per_step=point.batch,
                log=log,
                agree=group.broadcast_object,
                share=group.all_gather_object if group.size > 1 else None,
            )
            measured = measure(
                steps,
                self.program.synchronize,
                self.program.clock,
                samples_per_step=point.batch,
                budget=Budget(seconds=point.seconds, warmup_seconds=10.0),
                log=log,
                after_window=attributed.after_window,
                pace=Lockstep(group.broadcast_object),
            )
            attributed.finish()
        return Taken(
            step_s=math.fsum(w.step_s for w in measured.windows) / len(measured.windows),
            parts={part.name: part.seconds for part in log.parts},
            profiled_step_s=log.figures["profiled_step_s"].value,
            warnings=tuple(w.code for w in log.warnings),
        )

    @contextmanager
    def slow_layers(self, slept: Slept) -> Iterator[int]:
        """Two layers sleep before their work; gives how many sleep."""
        layers = list(self.program._built.layers.values())
        chosen = [layers[len(layers) // 3], layers[2 * len(layers) // 3]]
        handles = [
            layer.register_forward_pre_hook(lambda *_: slept.sleep(LAUNCH_S)) for layer in chosen
        ]
        try:
            yield len(chosen)
        finally:
            for handle in handles:
                handle.remove()


def check(point: Point, device: str, threads: int, framework: str) -> Iterator[Line]:
    """The lines of one network."""
    bench = Bench(point, device, threads, framework)
    name = f"{point.network} {point.batch}"
    bare = bench.take_apart()
    yield _sums_up(name, bare)
    fed = bench.take_apart(data_location="host", threads=1)
    for factor in (0.5, 2.0):
        yield _slow_source(name, bench, fed, factor)
    yield _hand_over(name, bench)
    if framework == "pytorch":  # compiled layers are not called one by one
        yield _launches(name, bench, bare)


def _sums_up(name: str, found: Taken) -> Line:
    total, rest = math.fsum(found.parts.values()), found.parts["unattributed"]
    share = rest / found.step_s
    sums = abs(total / found.step_s - 1) <= 0.02
    return Line(
        point=name,
        check="nothing planted: unattributed, and the sum of all parts",
        wanted="within 2 % of the step; 100 ± 2 %",
        found=f"{100 * share:+.1f} %; {100 * total / found.step_s:.2f} %",
        passed=abs(share) <= MOST_UNATTRIBUTED and sums,
        parts_ms=_ms(found),
    )


def _slow_source(name: str, bench: Bench, fed: Taken, factor: float) -> Line:
    slow = SlowSource(bench.source, bench.point.batch, factor * fed.step_s)
    found = bench.take_apart(source=slow, threads=1, data_location="host")  # type: ignore[arg-type]
    produced_s = slow.minibatch_s
    wanted_s = max(0.0, produced_s - fed.step_s)
    stall_s = found.parts["input_stall"]
    within_s = max(WITHIN * wanted_s, FLOOR * fed.step_s)
    return Line(
        point=name,
        check=f"minibatch made in {1e3 * produced_s:.2f} ms, step {1e3 * fed.step_s:.2f} ms",
        wanted=f"input stall {1e3 * wanted_s:.2f} ± {1e3 * within_s:.2f} ms",
        found=f"{1e3 * stall_s:.2f} ms",
        passed=abs(stall_s - wanted_s) <= within_s,
        parts_ms=_ms(found),
    )


def _hand_over(name: str, bench: Bench) -> Line:
    slept = Slept()

    def place(batch: Batch) -> Any:
        return bench.program.place(batch)

    def slow_place(batch: Batch) -> Any:
        slept.sleep(HAND_OVER_S)
        return bench.program.place(batch)

    bare = bench.take_apart(place=place)
    found = bench.take_apart(place=slow_place)
    grown_s = found.parts["host"] - bare.parts["host"]
    longer_s = found.step_s - bare.step_s
    hidden = bench.runs_ahead and longer_s < HAND_OVER_S / 2
    wanted_s = max(0.0, longer_s) if hidden else slept.mean_s
    return Line(
        point=name,
        check=f"{1e3 * slept.mean_s:.2f} ms at hand-over" + (", hidden" if hidden else ""),
        wanted=f"host {1e3 * wanted_s:+.2f} ± {1e3 * HAND_OVER_WITHIN_S:.1f} ms",
        found=f"{1e3 * grown_s:+.2f} ms (step {1e3 * longer_s:+.2f})",
        passed=abs(grown_s - wanted_s) <= HAND_OVER_WITHIN_S,
        parts_ms=_ms(found),
    )


def _launches(name: str, bench: Bench, bare: Taken) -> Line:
    slept = Slept()
    with bench.slow_layers(slept) as layers:
        found = bench.take_apart()
    planted_s = layers * slept.mean_s
    grown_s = found.parts["launch_gaps"] - bare.parts["launch_gaps"]
    longer_s = found.step_s - bare.step_s
    hidden = bench.runs_ahead and longer_s < planted_s / 2
    wanted_s = max(0.0, longer_s)
    within_s = max(WITHIN * wanted_s, FLOOR * bare.step_s)
    return Line(
        point=name,
        check=f"{1e3 * planted_s:.2f} ms between launches" + (", hidden" if hidden else ""),
        wanted=f"launch gaps {1e3 * wanted_s:+.2f} ± {1e3 * within_s:.2f} ms",
        found=f"{1e3 * grown_s:+.2f} ms (step {1e3 * longer_s:+.2f})",
        passed=abs(grown_s - wanted_s) <= within_s,
        parts_ms=_ms(found),
    )


def _ms(found: Taken) -> dict[str, float]:
    named = {"step": found.step_s, "profiled step": found.profiled_step_s, **found.parts}
    return {name: 1e3 * seconds for name, seconds in named.items()}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--framework", default="pytorch", choices=["pytorch", "pytorch-compiled"])
    parser.add_argument("--networks", nargs="*", help="little-cnn, resnet-50; both unless given")
    parser.add_argument("--threads", type=int, help="PyTorch's own choice unless given")
    parser.add_argument("--seconds", type=float, help="measured, of each line")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> int:
    """Check and print; 1 where a line did not pass."""
    args = arguments()
    points = POINTS[args.device.split(":")[0]]
    threads = args.threads or torch.get_num_threads()
    print(f"{args.framework} on {args.device}, {threads} threads, PyTorch {torch.__version__}")
    lines = []
    for point in points:
        if args.networks and point.network not in args.networks:
            continue
        if args.seconds:
            point = Point(**{**asdict(point), "seconds": args.seconds})
        for line in check(point, args.device, threads, args.framework):
            lines.append(line)
            parts = ", ".join(f"{name} {value:.3f}" for name, value in line.parts_ms.items())
            print(f"{'pass' if line.passed else 'FAIL'}  {line.point}: {line.check}")
            print(f"      wanted {line.wanted}; found {line.found}\n      ms: {parts}", flush=True)
    passed = sum(line.passed for line in lines)
    print(f"{passed} of {len(lines)} pass")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"schema": 1, "lines": [asdict(line) for line in lines]}, file, indent=2)
    return 0 if passed == len(lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
