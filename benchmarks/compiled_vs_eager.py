"""Throughput of `pytorch-compiled` relative to `pytorch`, and the time to compile.

Both train the same network from the same weights with a copy of the same batch in every step,
A/B interleaved in one process (ab_comparison.py). The ratio is compiled over eager: above 1 is
faster.

    python benchmarks/compiled_vs_eager.py --network little-cnn --batch 64
"""

from __future__ import annotations

import argparse
import time

import torch

from ab_comparison import Comparison, Side, compare, random_batch, setting, write_json
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps


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


def measure(args: argparse.Namespace) -> tuple[Comparison, float, bool | None]:
    """(eager and compiled, compared; seconds that the first compilation took; whether that came
    from the cache)."""
    network = networks.build(args.network, args.image_size, None)
    batch = random_batch(network, args.batch)
    request = BuildRequest(
        network=network,
        work=TrainSteps(network=args.network, batch_per_device=args.batch),
        placement=Placement(),
        program=ProgramSettings(precision=args.precision, layout=args.layout),
        sync=strategies.make("none"),
        device=args.device,
        threads=args.threads,
    )
    compiled = [make_side("pytorch-compiled", network, batch, request) for _ in range(2)]
    eager = [make_side("pytorch", network, batch, request) for _ in range(2)]
    both = [(e[0], c[0]) for e, c in zip(eager, compiled, strict=True)]
    return compare(both, args.seconds), *compiled[0][1:]


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
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    found, compile_s, cached = measure(args)
    print(setting(args))
    print(f"compiling took {compile_s:.1f} s ({'from the cache' if cached else 'not cached'})")
    print(found.text("eager", "compiled", args.batch))
    write_json(args, found, compile_s=compile_s, cached=cached)


if __name__ == "__main__":
    main()
