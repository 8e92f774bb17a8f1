r"""Throughput of cubemesh's fastest setting relative to each framework's usual code.

cubemesh's program in the fastest of a few settings (framework and layout, found by timing each for
a few steps), and the stock ways to train the same network in the same precision: PyTorch eager and
compiled, in both layouts, with torchvision's module where it is installed and a handwritten one
elsewhere; JAX, TensorFlow and Keras by hand (the modules `handwritten*.py`), of these only JAX in
bf16. A/B interleaved (ab_comparison.py): on a CPU each side in a process of its own, since memory
and threads belong to a process, on a GPU all in this one. Data are resident on the device; only
TensorFlow and Keras copy theirs in each step, and cubemesh does too when compared with them.

    python benchmarks/versus_peers.py --networks little-cnn --batch 128                    # CPU
    python benchmarks/versus_peers.py --rounds 10             # CPU, round robin: faster
    python benchmarks/versus_peers.py --networks resnet-50 --python jax=/opt/jax/bin/python
    python benchmarks/versus_peers.py --device cuda:0 --networks resnet-50 --batch 256 \
        --precision bf16

The ratio is cubemesh's throughput over the peer's. What is not installed is printed as absent.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version

from ab_comparison import Comparison, Side, compare, compare_rounds, in_rounds, window_s
from cubemesh.frameworks import entry
from handwritten_comparison import PEERS
from side_subprocess import BuildFailed, SideProcess
from side_worker import OURS, STOCK, TORCHVISION, SideSpec, build

SETTINGS = {
    "cpu": (
        ("pytorch-captured", "nhwc"),
        ("pytorch-compiled", "nhwc"),
        ("pytorch", "nhwc"),
        ("pytorch", "nchw"),
    ),
    "cuda": (("pytorch-captured", "nhwc"), ("pytorch-compiled", "nhwc"), ("pytorch", "nhwc")),
}
"""Kind of device → (framework, layout) that are tried."""
TRIAL_STEPS = 5
SETTLING_STEPS = {"cpu": 2, "cuda": 4}
"""Before a trial: the captured program needs three until it replays."""
ROUND_SETTLING_STEPS = 2
"""Of each peer, before the first round."""
OTHERS = ("jax", "tensorflow", "tensorflow-xla", "keras")
PATHS = ("json", "python", "pythons")
"""Settings that are meaningless elsewhere."""
GOAL = {"cpu": 1.25}
"""Kind of device → the goal for the ratio to the best peer."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One peer."""

    network: str
    peer: str
    setting: str
    """Cubemesh's, the fastest that was found."""
    found: Comparison | None = None
    absent: str = ""
    steps_s: tuple[Sequence[float], Sequence[float]] = ((), ())
    """In rounds: seconds of a step in each, the peer's and cubemesh's."""


@contextmanager
def sides(
    wanted: Iterable[SideSpec], pythons: dict[str, str], clock: str = "wall"
) -> Iterator[list[Side]]:
    """The sides, on a CPU in processes of their own, and ended afterwards; raises BuildFailed."""
    processes: list[SideProcess] = []
    found = []
    try:
        for one in wanted:
            if one.device == "cpu":
                processes.append(SideProcess(one, pythons.get(one.peer, sys.executable)))
                found.append(processes[-1].side(clock))
            else:
                found.append(build(one))
        yield found
    finally:
        for process in processes:
            process.close()


def step_s(side: Side, settling: int) -> float:
    """Seconds of a step by the side's clock, about."""
    window_s(side, settling)
    return window_s(side, TRIAL_STEPS)


def fastest(plain: SideSpec, clock: str = "wall") -> SideSpec:
    """`plain`, a program of cubemesh's, in the fastest setting that this machine offers."""
    kind = plain.device.partition(":")[0]
    tried: dict[SideSpec, float] = {}
    for framework, layout in SETTINGS[kind]:
        if plain.device in entry(framework).load().capabilities().devices:
            wanted = replace(plain, framework=framework, layout=layout)
            with sides([wanted], {}, clock) as (side,):
                tried[wanted] = step_s(side, SETTLING_STEPS[kind])
            print(f"  tried {framework}, {layout}: {tried[wanted] * 1e3:.2f} ms a step", flush=True)
    return min(tried, key=lambda wanted: tried[wanted])


def why_absent(peer: str, args: argparse.Namespace, network: str) -> str:
    """Why a peer is absent; empty where it is there."""
    if peer in STOCK:
        handwritten = importlib.import_module("handwritten")
        by_hand = hasattr(handwritten, network.replace("-", "_"))
        in_torchvision = network in TORCHVISION and importlib.util.find_spec("torchvision")
        return "" if by_hand or in_torchvision else "no stock module of this network"
    if peer not in args.pythons and not entry(peer).installed:
        return f"not installed (--python {peer}=PATH names an environment that has it)"
    if network not in PEERS[peer].networks:
        return "not written by hand in it"
    if args.precision not in (able := PEERS[peer].precisions):
        return f"by hand in {', '.join(able)} only"
    if args.device != "cpu" and args.device not in entry(peer).load().capabilities().devices:
        return f"not on {args.device}"
    return ""


def versus(peer: str, mine: SideSpec, args: argparse.Namespace) -> Line:
    """One line: instances of both, compared."""
    shown = f"{mine.framework}, {mine.layout}"
    absent = why_absent(peer, args, mine.network)
    if absent:
        return Line(network=mine.network, peer=peer, setting=shown, absent=absent)
    # Ours first: in one process it sets precision and cuDNN for both.
    copies = peer not in STOCK and PEERS[peer].placed is None
    pair = (replace(mine, copies=copies), replace(mine, peer=peer))
    try:
        with sides(pair * args.instances, args.pythons, args.clock) as built:
            found = compare(list(zip(built[1::2], built[::2], strict=True)), args.seconds)
    except BuildFailed as error:
        return Line(network=mine.network, peer=peer, setting=shown, absent=str(error))
    return Line(network=mine.network, peer=peer, setting=shown, found=found)


def compare_at_once(mine: SideSpec, args: argparse.Namespace) -> list[Line]:
    """All lines, from rounds of all peers that are there; raises BuildFailed for cubemesh's own."""
    shown = f"{mine.framework}, {mine.layout}"
    lines, present = [], {OURS: mine}
    for peer in peers_of(args):
        if absent := why_absent(peer, args, mine.network):
            lines.append(Line(network=mine.network, peer=peer, setting=shown, absent=absent))
        else:
            present[peer] = replace(mine, peer=peer)
    processes: dict[str, SideProcess] = {}
    built: dict[str, Side] = {}
    try:
        for peer, wanted in present.items():
            try:
                processes[peer] = SideProcess(wanted, args.pythons.get(peer, sys.executable))
                window_s(processes[peer].side(args.clock), ROUND_SETTLING_STEPS)
                built[peer] = processes[peer].side(args.clock)
            except BuildFailed as error:
                if peer == OURS:
                    raise
                line = Line(network=mine.network, peer=peer, setting=shown, absent=str(error))
                lines.append(line)
        step_times = in_rounds(built, args.rounds, args.steps)
    finally:
        for process in processes.values():
            process.close()
    own = step_times.pop(OURS)
    for peer, steps_s in step_times.items():
        found = compare_rounds(steps_s, own, args.steps)
        both = (steps_s, own)
        lines.append(
            Line(network=mine.network, peer=peer, setting=shown, found=found, steps_s=both)
        )
    return sorted(lines, key=lambda line: peers_of(args).index(line.peer))


def text(line: Line, samples: int) -> str:
    """A line of the table."""
    head = f"{line.network:11} {line.peer:19} "
    if line.found is None:
        return f"{head}absent: {line.absent}"
    c = line.found
    rates = [samples / ms * 1e3 for ms in (c.first_step_ms, c.second_step_ms)]
    return (
        f"{head}{rates[0]:10,.1f} {rates[1]:10,.1f}   {c.ratio:.3f} ({c.low:.3f} to {c.high:.3f})"
        f"  {c.pairs:4}  {line.setting}"
    )


def verdict(lines: Iterable[Line], kind: str) -> str:
    """The ratio to the best peer, which is the smallest."""
    found = [(line.found.ratio, line) for line in lines if line.found is not None]
    if not found:
        return "no peer was compared"
    ratio, line = min(found, key=lambda pair: pair[0])
    shown = f"the best peer of {line.network} is {line.peer}: {ratio:.3f}"
    goal = GOAL.get(kind)
    if goal is None:
        return shown
    return f"{shown}; {'reached' if ratio >= goal else 'missed'}: the goal is {goal}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="little-cnn,resnet-50", help="names, between commas")
    parser.add_argument("--peers", help="between commas; all of the device's unless given")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each comparison, about")
    parser.add_argument("--rounds", type=int, help="on a CPU: all at once, as many times in turn")
    parser.add_argument("--steps", type=int, default=1, help="of a window of a round")
    parser.add_argument("--instances", type=int, default=2, help="of each side")
    parser.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="processor: of a CPU that others use, with --threads 1",
    )
    parser.add_argument("--setting", help="cubemesh's, FRAMEWORK,LAYOUT, instead of trying")
    parser.add_argument(
        "--python", action="append", default=[], help="PEER=PATH: the Python a peer runs in"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    args = parser.parse_args()
    args.pythons = dict(given.split("=", 1) for given in args.python)
    known = (*STOCK, *OTHERS)
    if unknown := [name for name in peers_of(args) if name not in known]:
        parser.error(f"--peers: {', '.join(unknown)}; known: {', '.join(known)}")
    return args


def peers_of(args: argparse.Namespace) -> list[str]:
    """The requested peers; on a GPU none in nchw."""
    if args.peers:
        return str(args.peers).split(",")
    stock = [name for name in STOCK if args.device == "cpu" or name.endswith("nhwc")]
    return [*stock, *OTHERS]


def main() -> int:
    """Compare and print; the result does not change the exit code."""
    args = arguments()
    if args.device != "cpu" and not importlib.import_module("torch").cuda.is_available():
        print("absent: a GPU that PyTorch can use")
        return 2
    lines = []
    for name in args.networks.split(","):
        print(f"{name}, batch size {args.batch}, {args.precision}, {args.device}, ", end="")
        print(f"{args.threads} threads")
        mine = SideSpec(
            peer=OURS,
            network=name,
            batch=args.batch,
            precision=args.precision,
            device=args.device,
            threads=args.threads,
        )
        if args.setting:
            framework, _, layout = args.setting.partition(",")
            mine = replace(mine, framework=framework, layout=layout)
        else:
            mine = fastest(mine, args.clock)
        print(f"{'peer/s':>42} {'cubemesh/s':>10}   ratio (95 % interval), pairs, setting")
        own = []
        one_by_one = (versus(peer, mine, args) for peer in peers_of(args))
        for line in compare_at_once(mine, args) if args.rounds else one_by_one:
            own.append(line)
            print(text(line, args.batch), flush=True)
        print(verdict(own, args.device.partition(":")[0]), flush=True)
        lines += own
    if args.json:
        with open(args.json, "w") as file:
            settings = {k: v for k, v in vars(args).items() if k not in PATHS}
            result = {"schema": 2, "torch": version("torch"), **settings}
            json.dump({**result, "lines": [asdict(line) for line in lines]}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
