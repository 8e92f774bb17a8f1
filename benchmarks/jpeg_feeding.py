r"""Training throughput on JPEG files relative to resident data.

One program in one process alternates between `made-images` (1,024 JPEG files of 500 x 375 pixels
and about 110 kB, generated once in the cache folder; read, decoded and cropped for every step) and
on one resident minibatch of random images. Minibatches that were already decoded when a turn on
files begins are used up before it counts. Each round gives a ratio of throughputs; printed are both
throughputs and the mean ratio with its 95 % interval (Student's) over the rounds.

    python benchmarks/jpeg_feeding.py --network little-cnn --size 32 --batch 16         # CPU
    python benchmarks/jpeg_feeding.py --device cuda:0 --framework pytorch-captured \
        --precision bf16 --layout nhwc --batch 256 --decode-location device --json feeding.json

The goal is a ratio of 0.95.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ab_comparison import random_batch
from cubemesh import networks
from cubemesh.batches import Batch, EncodedBatch
from cubemesh.data.feed import Feed
from cubemesh.data.images import generated_jpegs as made_images
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    SupportsCompilation,
    SupportsDecoding,
    SupportsProcessSetup,
)
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.statistics import mean, t_interval

MOST_PREFETCHED = 8
"""Prefetched batches at most: decoded, being decoded, in slots; and one more."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The printed values."""

    fed_per_s: float
    synthetic_per_s: float
    ratio: float
    low: float
    high: float
    rounds: tuple[float, ...]
    waited: float
    """Fraction of the time on files that the step waited for input."""
    decoded_by_host: int
    """Images that the device refused and the host decoded."""
    decoding_s: float | None
    """Mean time of a batch in the thread that prefetches on the device; None where the host decodes
    or without such a thread."""
    decoding_processor_s: float | None
    """Processor time in it; the rest is waiting, for the device or the GIL."""


class TimedDecoder:
    """A program whose `decode` is timed."""

    def __init__(self, program: SupportsDecoding) -> None:
        self._program = program
        self._times: list[tuple[float, float]] = []

    def decode(self, batch: EncodedBatch) -> Batch:
        """See `SupportsDecoding`."""
        start = time.perf_counter(), time.thread_time()
        made = self._program.decode(batch)
        self._times.append((time.perf_counter() - start[0], time.thread_time() - start[1]))
        return made

    def means(self) -> tuple[float | None, float | None]:
        """Mean seconds and processor seconds per batch, without the warm-up."""
        times = self._times[MOST_PREFETCHED:]
        if not times:
            return None, None
        return mean([wall for wall, _ in times]), mean([own for _, own in times])


def request_for(device: str, size: int, batch: int, **settings: Any) -> BuildRequest:
    """A request for ResNet-50 in bf16 with decoding on the device, unless `settings` differ."""
    name = settings.pop("network", "resnet-50")
    usual = {"precision": "bf16", "layout": "nhwc", "decode_location": "device"}
    program = ProgramSettings(**{**usual, **settings})
    return BuildRequest(
        network=networks.build(name, size, 10),
        work=TrainSteps(network=name, batch_per_device=batch),
        placement=Placement(),
        program=program,
        sync=strategies.make("none"),
        device=device,
        threads=len(os.sched_getaffinity(0)),
    )


def timed(step: Callable[[], None], synchronize: Callable[[], None], seconds: float) -> float:
    """Steps per second over about `seconds`."""
    synchronize()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    synchronize()
    return steps / (time.perf_counter() - start)


def measure(args: argparse.Namespace) -> Result:
    """The rounds."""
    settings = {
        n: getattr(args, n) for n in ("framework", "precision", "layout", "decode_location")
    }
    request = request_for(args.device, args.size, args.batch, network=args.network, **settings)
    reading = ImageOptions(stays_encoded=args.decode_location == "device")
    shape = request.network.inputs[0].shape
    source = open_images(made_images.folder(), "train", shape, 10, reading)
    feed = Feed(source, args.batch, 0, threads=args.threads)
    framework = entry(args.framework).load()
    if isinstance(framework, SupportsProcessSetup):
        framework.setup_process(request.program)
    program = framework.build(request)
    resident = program.place(random_batch(request.network, args.batch))
    if isinstance(program, SupportsCompilation):
        program.compile(resident)
    program.load(request.network.draw(0))
    timed_decoder = TimedDecoder(program)
    if reading.stays_encoded:
        feed.decode_by(timed_decoder)

    def fed() -> None:
        program.train_step(program.place(next(feed)))

    def synthetic() -> None:
        program.train_step(resident)

    for step in (synthetic, fed):
        timed(step, program.synchronize, args.seconds)
    rates: list[tuple[float, float]] = []
    waited_s = 0.0
    for _ in range(args.rounds):
        for _ in range(MOST_PREFETCHED):
            fed()
        program.synchronize()
        start = time.perf_counter()
        on_files = timed(fed, program.synchronize, args.seconds)
        waited_s += feed.waited_s(start, time.perf_counter())
        rates.append((on_files, timed(synthetic, program.synchronize, args.seconds)))
    by_host = sum(source.tally(feed.tried).by_host.values())
    feed.close()
    program.close()
    ratios = [on_files / on_batch for on_files, on_batch in rates]
    interval = t_interval(ratios)
    decoding_s, decoding_processor_s = timed_decoder.means()
    return Result(
        fed_per_s=args.batch * mean([r[0] for r in rates]),
        synthetic_per_s=args.batch * mean([r[1] for r in rates]),
        ratio=mean(ratios),
        low=interval.low,
        high=interval.high,
        rounds=tuple(ratios),
        waited=waited_s / (args.rounds * args.seconds),
        decoded_by_host=by_host,
        decoding_s=decoding_s,
        decoding_processor_s=decoding_processor_s,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--size", type=int, default=224, help="of the images, in pixels")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--framework", default="pytorch")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--layout", default="nchw")
    parser.add_argument("--decode-location", choices=["host", "device"], default="host")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=4.0, help="per round and side")
    parser.add_argument("--rounds", type=int, default=5, help="two or more")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    found = measure(args)
    print(
        f"{args.network}, batch size {args.batch}, {args.precision}, {args.framework}, decoded on "
        f"the {args.decode_location}, {args.threads} threads: "
        f"{found.fed_per_s:,.0f} images/s on files, "
        f"{found.synthetic_per_s:,.0f} with resident data: {found.ratio:.3f} "
        f"({found.low:.3f} to {found.high:.3f}); {100 * found.waited:.0f} % of the time waited for "
        f"input; {found.decoded_by_host} images decoded by the host"
    )
    if found.decoding_s is not None and found.decoding_processor_s is not None:
        print(
            f"decoding a batch takes {1e3 * found.decoding_s:.1f} ms, of which processor time "
            f"{1e3 * found.decoding_processor_s:.1f}"
        )
    if args.json:
        with open(args.json, "w") as file:
            settings = {k: v for k, v in vars(args).items() if k != "json"}
            json.dump({"schema": 1, **settings, **asdict(found)}, file, indent=2)


if __name__ == "__main__":
    main()
