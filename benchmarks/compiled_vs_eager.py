"""Throughput of `pytorch-compiled` relative to `pytorch`, and the time to compile.

Both train the same network from the same weights with a copy of the same minibatch in every step,
A/B interleaved in one process (ab_comparison.py). The ratio is compiled over eager: above 1 is
faster.

    python benchmarks/compiled_vs_eager.py --network little-cnn --batch 64
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import torch

from ab_comparison import Side, compare, random_batch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is printed, and written with `--json`."""

    network: str
    batch: int
    precision: str
    device: str
    threads: int
    torch: str
    pairs: int
    steps_per_window: int
    compile_s: float
    """Of the first program; the others of its kind find it in the cache."""
    cached: bool | None
    eager_step_ms: float
    eager_step_mad_ms: float
    compiled_step_ms: float
    compiled_step_mad_ms: float
    ratio: float
    """Compiled throughput over eager."""
    low: float
    high: float


def make_side(
    framework: str, network: Network, batch: Batch, request: BuildRequest
) -> tuple[Side, float, bool | None]:
    """(the side, seconds that compiling took, whether it came from the cache)."""
    program = entry(framework).load().build(request)
    start, cached = time.perf_counter(), None
    if isinstance(program, SupportsCompilation):
        cached = program.compile(program.place(batch))
    compile_s = time.perf_counter() - start
    program.load(network.draw(0))

    def step() -> None:
        program.train_step(program.place(batch))

    return Side(step=step, synchronize=program.synchronize), compile_s, cached


def measure(args: argparse.Namespace) -> Result:
    """Build instances of both, compare them, and sum up."""
    network = networks.build(args.network, args.image_size, None)
    batch = random_batch(network, args.batch)
    threads = args.threads or torch.get_num_threads()
    request = BuildRequest(
        network=network,
        work=TrainSteps(network=args.network, batch_per_device=args.batch),
        placement=Placement(),
        program=ProgramSettings(precision=args.precision, layout=args.layout),
        sync=strategies.make("none"),
        device=args.device,
        threads=threads,
    )
    compiled = [make_side("pytorch-compiled", network, batch, request) for _ in range(2)]
    eager = [make_side("pytorch", network, batch, request) for _ in range(2)]
    both = [(e[0], c[0]) for e, c in zip(eager, compiled, strict=True)]
    found = compare(both, args.seconds)
    return Result(
        network=args.network,
        batch=args.batch,
        precision=args.precision,
        device=args.device,
        threads=threads,
        torch=torch.__version__,
        pairs=found.pairs,
        steps_per_window=found.steps_per_window,
        compile_s=compiled[0][1],
        cached=compiled[0][2],
        eager_step_ms=found.first_step_ms,
        eager_step_mad_ms=found.first_step_mad_ms,
        compiled_step_ms=found.second_step_ms,
        compiled_step_mad_ms=found.second_step_mad_ms,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="little-cnn")
    parser.add_argument("--image-size", type=int, help="pixels; the network's own unless given")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, at least")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nchw")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, help="PyTorch's own choice unless given")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    result = measure(args)
    origin = "from the cache" if result.cached else "not cached"
    print(
        f"{result.network}, minibatch {result.batch}, {result.precision} on {result.device}, "
        f"{result.threads} threads, PyTorch {result.torch}: "
        f"{result.pairs} pairs of windows of {result.steps_per_window} steps"
    )
    print(f"compiling took {result.compile_s:.1f} s ({origin})")
    print(f"eager     {result.eager_step_ms:.3f} ms a step (MAD {result.eager_step_mad_ms:.3f})")
    print(
        f"compiled  {result.compiled_step_ms:.3f} ms a step (MAD {result.compiled_step_mad_ms:.3f})"
    )
    print(
        f"ratio of throughputs, compiled / eager: {result.ratio:.4f} "
        f"(95 % interval {result.low:.4f} to {result.high:.4f})"
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"schema": 1, **asdict(result)}, file, indent=2)


if __name__ == "__main__":
    main()
