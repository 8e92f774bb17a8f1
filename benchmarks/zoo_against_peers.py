r"""Throughput of the captured step relative to stock PyTorch at its best, for every network of the
zoo.

Each case is a network and a batch size on one GPU, in 16 bits, with data on the device and SGD with
momentum. The peers are stock modules (`stock_modules.py`) trained under autocast, channels last,
with a fused optimizer: eager; the same with the whole step captured by hand as one CUDA graph; by
`torch.compile`, the loss compiled with the network; compiled and captured; and that with a
vocabulary padded to a multiple of 64. Recurrent layers of a compiled peer are cuDNN's.
Captured steps copy their batch into the graph's arrays. All programs of a case train in one
process, their windows interleaved in random order; each round is one observation of a ratio, and
the interval is that of their median.

    python benchmarks/zoo_against_peers.py --cases vgg16:64,gpt2:16
    python benchmarks/zoo_against_peers.py --cases zoo --processes 6 --minutes 9 --json zoo.json
    python benchmarks/zoo_against_peers.py --cases llama3-1b@4096:1 --peers "compiled, graph"
    python benchmarks/zoo_against_peers.py --cases gpt2:16 --losses 200   # paired training as well
    python benchmarks/zoo_against_peers.py --cases gpt2:16 --fp8 'transformer.h.*' --losses 300

The ratio is cubemesh's throughput over the peer's. Segments are printed with their implementation.
`NETWORK@LENGTH:BATCH` is a network for sequences of another length; `NETWORK:BATCH:LAYERS` one with
layers in FP8, as by `--fp8`; `zoo` every network with two batch sizes. With `--processes` cases
compile at once and time in turns (`gpu_turns.py`), as many as fit the GPU's memory by forecast.
`--losses` trains eagerly and captured from the same weights on the same batches (four seeds) and
prints the difference of the losses with its standard error. `--fp8` names layers whose matrix
products cubemesh computes in 8-bit floats (`precision_of=NAME=fp8`); its own program in bf16 is
compared as well, and `--losses` compares with that one.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ab_comparison import Comparison, Side, compare_rounds, in_rounds, window_s
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.networks.cost import totals
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import InputFeedingDecoder, Recurrence
from cubemesh.networks.memory import forecast
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from gpu_turns import Turns, resume
from stock_modules import padded_vocabulary, stock_loss

OURS = "cubemesh"
OURS_BF16 = "cubemesh, bf16"
DEVICE = "cuda:0"
RATE, MOMENTUM = 0.002, 0.9
"""A rate at which every network of the zoo trains stably."""
PEERS = ("eager", "graph", "compiled", "compiled, graph", "compiled, graph, padded")
BATCH_SIZES: dict[str, tuple[int, ...]] = {
    "little-cnn": (128, 1024),
    "little-cnn-unpadded": (128, 1024),
    "cifarnet": (128, 1024),
    "alexnet": (256, 64),
    "overfeat": (256, 64),
    "vgg11": (64, 128),
    "vgg16": (64, 32),
    "vgg19": (64, 32),
    "googlenet": (256, 64),
    "googlenet-paper": (256, 64),
    "inception-bn": (256, 64),
    "inception-v3": (128, 32),
    "resnet-18": (256, 32),
    "resnet-34": (256, 32),
    "resnet-50": (256, 32),
    "resnet-101": (128, 32),
    "resnet-152": (128, 32),
    "efficientnet-b0": (256, 64),
    "convnext-t": (128, 32),
    "unet": (8, 2),
    "vit-s16": (256, 64),
    "vit-b16": (256, 64),
    "vit-l16": (64, 16),
    "gpt2": (16, 4),
    "gpt2-medium": (8, 2),
    "gpt2-large": (4, 1),
    "gpt2-xl": (2, 1),
    "bert-base": (32, 8),
    "bert-large": (16, 4),
    "llama-125m": (8, 2),
    "llama3-1b@4096": (1, 2),
    "translator": (64, 256),
    "translator-plain": (64, 256),
    "translator-2x": (64, 256),
    "deep-speech-gru": (64, 16),
    "deep-speech-rnn": (64, 16),
    "captioner": (256, 64),
}
"""Of each network that trains on one GPU."""
PROGRAMS_AT_ONCE = 3.0
"""Memory of a case in that of one program, by forecast; one more where it is compared in FP8."""
SETTLING_STEPS = 5
WINDOW_S = 0.15
"""About, of a program in a round."""
SEEDS = 4


@dataclass(frozen=True, kw_only=True)
class Line:
    """One peer of a case."""

    network: str
    batch: int
    peer: str
    fp8: str = ""
    """Layers in FP8."""
    segments: dict[str, str]
    """Segment → its implementation in cubemesh's program."""
    milliseconds: dict[str, dict[Any, float]]
    """Segment → both passes by each implementation that was tried."""
    flops: float
    """Of a sample's forward and backward pass."""
    found: Comparison | None = None
    absent: str = ""


def stock(
    peer: str,
    network: Network,
    batch: Batch,
    low_precision: torch.dtype,
    turn: AbstractContextManager[None],
) -> Side:
    """A stock program, captured in a `turn`."""
    torch.manual_seed(0)
    module, loss_of = stock_loss(network, padded_vocabulary(network) if "padded" in peer else None)
    module.to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    dynamo = importlib.import_module("torch._dynamo.config")
    dynamo.allow_rnn = False  # type: ignore[attr-defined]  # cuDNN's recurrent layers, PyTorch's default
    run = torch.compile(loss_of, dynamic=False) if "compiled" in peer else loss_of
    placed = [torch.from_numpy(a).to(DEVICE) for a in (*batch.inputs, batch.labels)]
    placed = [x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in placed]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", low_precision):
            loss = run(*placed)
        loss.backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # compiles
    torch.cuda.synchronize()
    if "graph" not in peer:
        return Side(step=step, synchronize=torch.cuda.synchronize)
    with turn:
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    given = [x.clone() for x in placed]  # a batch, which cubemesh's captured step copies as well

    def replay(kept: Any = (module, optimizer)) -> None:
        for own, other in zip(placed, given, strict=True):
            own.copy_(other, non_blocking=True)
        graph.replay()

    return Side(step=replay, synchronize=torch.cuda.synchronize)


def request_for(
    network: Network,
    batch: int,
    precision: Any,
    framework: str = "pytorch-captured",
    fp8: str = "",
) -> BuildRequest:
    """What cubemesh's program is built from."""
    images = len(network.inputs[0].shape) == 3
    return BuildRequest(
        network=network,
        work=TrainSteps(
            network=network.name, batch_per_device=batch, learning_rate=RATE, momentum=MOMENTUM
        ),
        placement=Placement(),
        program=ProgramSettings(
            framework=framework,
            precision=precision,
            layout="nhwc" if images else "nchw",
            loss_scale=1024.0 if precision == "fp16" else None,
            precision_of=(f"{fp8}=fp8",) if fp8 else (),
        ),
        sync=strategies.make("none"),
        device=DEVICE,
        threads=8,
    )


def ours(request: BuildRequest, batch: Batch) -> tuple[Side, Any]:
    """Cubemesh's program, compiled, its batch placed, and the program."""
    program: Any = entry(request.program.framework).load().build(request)
    placed = program.place(batch)
    start = time.perf_counter()
    if hasattr(program, "compile"):
        program.compile(placed)
    print(f"  compiled in {time.perf_counter() - start:.0f} s", flush=True)
    program.load(request.network.draw(0))
    side = Side(step=lambda: program.train_step(placed), synchronize=program.synchronize)
    return side, program


def random_batch(network: Network, samples: int, seed: int = 0) -> Batch:
    """Random samples."""
    rng = np.random.default_rng(seed)
    inputs: list[Any] = [
        rng.random((samples, *given.shape), dtype=np.float32)
        if given.dtype == "float"
        else rng.integers(0, given.classes or 1, (samples, *given.shape))
        for given in network.inputs
    ]
    (target,) = network.targets
    return Batch(*inputs, labels=rng.integers(0, target.classes or 1, (samples, *target.shape)))


def build(case: str) -> Network:
    """The network of NETWORK or NETWORK@LENGTH."""
    name, _, length = case.partition("@")
    return networks.build(name, sequence_length=int(length) if length else None)


def compare_case(
    name: str, samples: int, args: argparse.Namespace, turn: AbstractContextManager[None]
) -> list[Line]:
    """All lines of a case, printed; windows in a `turn`."""
    network = build(name)
    batch = random_batch(network, samples)
    print(f"{name}, batch size {samples}, {args.precision}", flush=True)
    mine, program = ours(request_for(network, samples, args.precision, fp8=args.fp8), batch)
    choices = {c.segment: c.implementation for c in program.segments.choices}
    line = partial(
        Line,
        network=name,
        batch=samples,
        fp8=args.fp8,
        segments=choices,
        milliseconds={c.segment: c.milliseconds for c in program.segments.choices},
        flops=totals(network).total.flops,
    )
    for choice in program.segments.choices:
        times = ", ".join(f"{n} {ms:.3f}" for n, ms in choice.milliseconds.items())
        print(f"  {choice.segment}: {choice.implementation} ({times} ms)")
    importlib.import_module("torch._inductor.config").compile_threads = args.threads
    sides, lines = {OURS: mine}, []
    with turn:
        window_s(mine, SETTLING_STEPS)
    if args.fp8:
        sides[OURS_BF16], wide = ours(request_for(network, samples, args.precision), batch)
        with turn:
            window_s(sides[OURS_BF16], SETTLING_STEPS)
    for peer in args.peers or best_peers(network):
        if "padded" in peer and not _odd(network):
            continue
        start = time.perf_counter()
        try:
            sides[peer] = stock(peer, network, batch, args.dtype, turn)
        except RuntimeError as error:
            sides.pop(peer, None)
            torch.cuda.empty_cache()
            lines.append(line(peer=peer, absent=str(error)[:200]))
        print(f"  {peer}: built in {time.perf_counter() - start:.0f} s", flush=True)
    with turn:
        for side in sides.values():
            window_s(side, SETTLING_STEPS)
        steps = max(2, math.ceil(WINDOW_S / window_s(mine, SETTLING_STEPS)))
        found = in_rounds(sides, args.rounds, steps)
    own = found.pop(OURS)
    for peer, seconds in found.items():
        compared = compare_rounds(seconds, own, steps)
        lines.append(line(peer=peer, found=compared))
    for one in lines:
        print(text(one), flush=True)
    program.close()
    if args.fp8:
        wide.close()
        del wide
    del mine, program, sides
    gc.collect()
    torch.cuda.empty_cache()
    torch.compiler.reset()
    return lines


def best_peers(network: Network) -> tuple[str, ...]:
    """Those of which one is the fastest: eager steps and steps launched one by one never are, and
    recurrent layers are not compiled."""
    if any(isinstance(node.layer, Recurrence | InputFeedingDecoder) for node in network.nodes):
        return ("graph", "compiled, graph")
    return ("compiled, graph, padded",) if _odd(network) else ("compiled, graph",)


def _odd(network: Network) -> bool:
    """Whether a network has a vocabulary to be padded."""
    given, target = network.inputs[0], network.targets[0]
    words = given.dtype == "integer" and bool(target.shape)
    return words and target.classes != padded_vocabulary(network)


def text(line: Line) -> str:
    """A line of the table."""
    head = f"  {line.network:19} {line.batch:4} {line.peer:25}"
    if line.found is None:
        return f"{head} absent: {line.absent}"
    c = line.found
    rates = [line.batch / ms * 1e3 for ms in (c.first_step_ms, c.second_step_ms)]
    return (
        f"{head} {rates[0]:10,.1f} {rates[1]:10,.1f} samples/s, {rates[1] * line.flops / 1e12:.0f} "
        f"TFLOP/s   {c.ratio:.3f} ({c.low:.3f} to {c.high:.3f}), {c.pairs} rounds of "
        f"{c.steps_per_window} steps"
    )


def paired_losses(name: str, samples: int, args: argparse.Namespace) -> dict[str, float]:
    """Train eagerly and captured, or captured in bf16 and with FP8, on the same batches; the mean
    difference of the losses of the last half, and its standard error over the seeds."""
    network, differences = build(name), []
    programs: dict[str, Any] = {}
    batches = [random_batch(network, samples, seed) for seed in range(4)]
    captured = "pytorch-captured"
    pair = (
        {"bf16": (captured, ""), "fp8": (captured, args.fp8)}
        if args.fp8
        else {"eager": ("pytorch", ""), "captured": (captured, "")}
    )
    for title, (framework, fp8) in pair.items():
        request = request_for(network, samples, args.precision, framework, fp8)
        programs[title] = entry(framework).load().build(request)
        if hasattr(programs[title], "compile"):
            programs[title].compile(programs[title].place(batches[0]))
    last = {}
    for seed in range(SEEDS):
        losses: dict[str, list[float]] = {}
        for title, program in programs.items():
            placed = [program.place(batch) for batch in batches]
            torch.manual_seed(seed)
            program.load(network.draw(seed))
            losses[title] = []
            for step in range(args.losses):
                program.train_step(placed[step % len(placed)])
                losses[title].append(program.loss())
        half = args.losses // 2
        means = [float(np.mean(losses[f][half:])) for f in programs]
        last = {f: losses[f][-1] for f in programs}
        differences.append(means[1] - means[0])
    for program in programs.values():
        program.close()
    error = float(np.std(differences, ddof=1) / math.sqrt(SEEDS))
    mean = float(np.mean(differences))
    print(
        f"  losses of {name}, {SEEDS} seeds, {args.losses} steps: {' less '.join([*pair][::-1])} "
        f"{mean:+.2e} ± {error:.2e} (a standard error); the last of the last seed {last}",
        flush=True,
    )
    return {"difference": mean, "standard_error": error}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="vgg16:64,gpt2:16,vit-b16:256", help="NETWORK:BATCH,…")
    parser.add_argument("--peers", default="", help="names, between semicolons; the best ones")
    parser.add_argument("--precision", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--fp8", default="", metavar="LAYERS", help="layers in FP8, such as '*'")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--losses", type=int, default=0, help="also train paired, as many steps")
    parser.add_argument("--processes", type=int, default=1, help="cases compiled at once")
    parser.add_argument("--minutes", type=float, default=60, help="of cases in processes of theirs")
    parser.add_argument("--threads", type=int, default=8, help="of the compiler of a process")
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    args = parser.parse_args()
    args.peers = [name.strip() for name in args.peers.split(";") if name.strip()]
    if unknown := [name for name in args.peers if name not in PEERS]:
        parser.error(f"--peers: {'; '.join(unknown)}; known: {'; '.join(PEERS)}")
    if args.cases == "zoo":
        sizes = [[(name, str(n)) for n in found] for name, found in BATCH_SIZES.items()]
        args.cases = [case for several in zip(*sizes, strict=True) for case in several]
    else:
        args.cases = [case.split(":") for case in args.cases.split(",")]
        if wrong := [":".join(case) for case in args.cases if len(case) not in (2, 3)]:
            parser.error(f"--cases: {', '.join(wrong)}; NETWORK:BATCH, NETWORK:BATCH:LAYERS or zoo")
    args.cases = [(*case[:2], case[2] if len(case) > 2 else args.fp8) for case in args.cases]
    for name, batch, fp8 in args.cases:
        if fp8 and args.precision != "bf16":
            parser.error("FP8 needs --precision bf16")
        if not batch.isdecimal():
            parser.error(f"--cases: {name}:{batch}; NETWORK:BATCH, or zoo")
        networks.canonical_name(name.partition("@")[0])
    args.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    return args


def write(args: argparse.Namespace, lines: list[Any], losses: dict[str, Any]) -> None:
    """Write what was found so far to the file of `--json`, if given."""
    if args.json:
        options = {k: v for k, v in vars(args).items() if k not in ("json", "dtype", "turns")}
        found = {"schema": 2, "torch": version("torch"), "gpu": torch.cuda.get_device_name()}
        with open(args.json, "w") as file:
            json.dump({**found, **options, "lines": lines, "losses": losses}, file, indent=1)


@cache
def memory_bytes(name: str, samples: int, precision: Any, fp8: str) -> float:
    """What a case needs of the GPU's memory."""
    own = forecast(build(name), samples, precision, device="cuda", layout="nhwc")
    return (PROGRAMS_AT_ONCE + bool(fp8)) * own.total_bytes


def in_processes(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of all cases, each compared in a process of its own, several at once."""
    waiting = list(args.cases)
    budget = 0.9 * torch.cuda.get_device_properties(0).total_memory
    running: dict[subprocess.Popen[bytes], tuple[float, Path, str]] = {}
    lines: list[dict[str, Any]] = []
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while running or (waiting and time.monotonic() < end):
            used = sum(need for need, *_ in running.values())
            for case in waiting if time.monotonic() < end else []:
                need = memory_bytes(case[0], int(case[1]), args.precision, case[2])
                if len(running) < args.processes and (not running or used + need < budget):
                    waiting.remove(case)
                    used += need
                    title = ":".join(case).rstrip(":")
                    part = folder / f"{len(waiting)}.json"
                    running[_start(args, title, folder, part)] = need, part, title
                    break
            for child in [child for child in running if child.poll() is not None]:
                _, part, title = running.pop(child)
                print(part.with_suffix(".txt").read_text(), end="", flush=True)
                resume(folder, child.pid)
                if part.exists():
                    lines += json.loads(part.read_text())["lines"]
                    write(args, lines, {})
                else:
                    print(f"{title}: exit code {child.returncode}", flush=True)
            if time.monotonic() > end + 60:
                for child in running:
                    child.kill()
            time.sleep(0.2)
    for case in waiting:
        print(f"{':'.join(case).rstrip(':')}: no time")
    return lines


def _start(
    args: argparse.Namespace, case: str, folder: Path, part: Path
) -> subprocess.Popen[bytes]:
    (folder / "members").mkdir(exist_ok=True)
    options = {
        "cases": case,
        "peers": "; ".join(args.peers),
        "precision": args.precision,
        "rounds": args.rounds,
        "threads": args.threads,
        "turns": folder,
        "json": part,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    with part.with_suffix(".txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, __file__, *words], stdout=output, stderr=subprocess.STDOUT
        )


def main() -> int:
    """Compare and print; the result does not change the exit code."""
    args = arguments()
    if not torch.cuda.is_available():
        print("absent: a GPU that PyTorch can use")
        return 2
    torch.backends.cudnn.benchmark = True
    found: list[dict[str, Any]] = []
    losses: dict[str, Any] = {}
    if args.processes > 1:
        found = in_processes(args)
    else:
        turns = None if args.turns is None else Turns(args.turns)
        if turns is not None:
            turns.cover_kernels(args.threads)
            compiled = importlib.import_module("cubemesh.frameworks.pytorch.compiled")
            compiled.MAX_COMPILER_PROCESSES = args.threads  # type: ignore[attr-defined]
        for name, batch, fp8 in args.cases:
            args.fp8 = fp8
            found += map(asdict, compare_case(name, int(batch), args, turns or nullcontext()))
            if args.losses:
                losses[f"{name}:{batch}"] = paired_losses(name, int(batch), args)
            write(args, found, losses)
        if turns is not None:
            turns.end()
            return 0
    ratios: dict[str, tuple[float, str]] = {}
    for line in found:
        if line["found"] is not None and line["peer"] != OURS_BF16:
            case = f"{line['network']}:{line['batch']}"
            own = (line["found"]["low"], line["peer"])
            ratios[case] = min(ratios.get(case, own), own)
    for case, (ratio, peer) in ratios.items():
        print(f"{case}: at least {ratio:.3f} of the best peer ({peer})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
