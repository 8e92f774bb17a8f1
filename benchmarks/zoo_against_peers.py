r"""Throughput of the captured step relative to stock PyTorch at its best, for networks of the zoo.

Each case is a network and a batch size on one GPU, in 16 bits, with data on the device and SGD with
momentum. The peers are stock modules (torchvision's; GPT-2 by hand with PyTorch's attention)
trained under autocast, channels last, with a fused optimizer: eager; by `torch.compile`, the loss
compiled with the network; the same with the whole step captured by hand as one CUDA graph; and of
GPT-2 with a vocabulary padded to 50,304. All programs of a case train in this process, their
windows interleaved in random order; each round is one observation of a ratio, and the interval is
that of their median.

    python benchmarks/zoo_against_peers.py --cases vgg16:64,gpt2:16
    python benchmarks/zoo_against_peers.py --cases resnet-50:256 --peers "compiled, graph"
    python benchmarks/zoo_against_peers.py --cases gpt2:16 --losses 200   # paired training as well
    python benchmarks/zoo_against_peers.py --cases gpt2:16 --fp8 '*' --losses 300

The ratio is cubemesh's throughput over the peer's. Segments are printed with their implementation.
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
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ab_comparison import Comparison, Side, compare_rounds, in_rounds, window_s
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

OURS = "cubemesh"
OURS_BF16 = "cubemesh, bf16"
DEVICE = "cuda:0"
RATE, MOMENTUM = 0.002, 0.9
"""A rate at which every network of the zoo trains stably."""
TORCHVISION = {
    "alexnet": "alexnet",
    "vgg11": "vgg11",
    "vgg16": "vgg16",
    "vgg19": "vgg19",
    "googlenet": "googlenet",
    "resnet-18": "resnet18",
    "resnet-34": "resnet34",
    "resnet-50": "resnet50",
    "resnet-101": "resnet101",
    "vit-b16": "vit_b_16",
}
"""cubemesh's name → torchvision's."""
PEERS = ("eager", "compiled", "compiled, graph", "compiled, graph, padded")
GPT2_PADDED = 50304
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
    segments: dict[str, str]
    """Segment → its implementation in cubemesh's program."""
    found: Comparison | None = None
    absent: str = ""


class Block(nn.Module):
    """A block of GPT-2: attention and perceptron, each behind a layer normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width), unchanged in shape."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attn(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 of 124 M parameters, its head tied to the embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        for array in self.parameters():
            if array.ndim > 1:
                nn.init.normal_(array, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) → (batch, length, vocabulary)."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def stock_module(network: Network, padded: bool) -> nn.Module:
    """The stock module of a network."""
    if network.name == "gpt2":
        vocabulary = network.targets[0].classes or 0
        length = network.inputs[0].shape[0]
        return Gpt2(GPT2_PADDED if padded else vocabulary, length, 768, 12, 12)
    models = importlib.import_module("torchvision.models")
    more = {"aux_logits": False, "init_weights": True} if network.name == "googlenet" else {}
    module: nn.Module = getattr(models, TORCHVISION[network.name])(weights=None, **more)
    return module


def stock(peer: str, network: Network, batch: Batch, low_precision: torch.dtype) -> Side:
    """A stock program."""
    module = stock_module(network, "padded" in peer)
    module.to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(module(x).flatten(0, -2), y.flatten())

    run: Callable[..., Tensor] = torch.compile(loss_of) if "compiled" in peer else loss_of
    x, y = (torch.from_numpy(array).to(DEVICE) for array in (batch.inputs[0], batch.labels))
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", low_precision):
            loss = run(x, y)
        loss.backward()
        optimizer.step()

    if "graph" not in peer:
        return Side(step=step, synchronize=torch.cuda.synchronize)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    kept = (graph, module, optimizer, x, y)
    return Side(step=lambda: kept[0].replay(), synchronize=torch.cuda.synchronize)


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
    (given,), (target,) = network.inputs, network.targets
    shape = (samples, *given.shape)
    x: Any = (
        rng.random(shape, dtype=np.float32)
        if given.dtype == "float"
        else rng.integers(0, given.classes or 1, shape)
    )
    return Batch(x, labels=rng.integers(0, target.classes or 1, (samples, *target.shape)))


def compare_case(name: str, samples: int, args: argparse.Namespace) -> list[Line]:
    """All lines of a case, printed."""
    network = networks.build(name)
    batch = random_batch(network, samples)
    print(f"{name}, batch size {samples}, {args.precision}", flush=True)
    mine, program = ours(request_for(network, samples, args.precision, fp8=args.fp8), batch)
    choices = {c.segment: c.implementation for c in program.segments.choices}
    line = partial(Line, network=name, batch=samples, segments=choices)
    for choice in program.segments.choices:
        times = ", ".join(f"{n} {ms:.3f}" for n, ms in choice.milliseconds.items())
        print(f"  {choice.segment}: {choice.implementation} ({times} ms)")
    importlib.import_module("torch._inductor.config").compile_threads = 8
    sides, lines = {OURS: mine}, []
    if args.fp8:
        sides[OURS_BF16], wide = ours(request_for(network, samples, args.precision), batch)
        window_s(sides[OURS_BF16], SETTLING_STEPS)
    for peer in args.peers:
        if "padded" in peer and name != "gpt2":
            continue
        try:
            sides[peer] = stock(peer, network, batch, args.dtype)
            window_s(sides[peer], SETTLING_STEPS)
        except RuntimeError as error:
            sides.pop(peer, None)
            torch.cuda.empty_cache()
            lines.append(line(peer=peer, absent=str(error)[:200]))
    window_s(mine, SETTLING_STEPS)
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


def text(line: Line) -> str:
    """A line of the table."""
    head = f"  {line.network:10} {line.batch:4} {line.peer:25}"
    if line.found is None:
        return f"{head} absent: {line.absent}"
    c = line.found
    rates = [line.batch / ms * 1e3 for ms in (c.first_step_ms, c.second_step_ms)]
    return (
        f"{head} {rates[0]:10,.1f} {rates[1]:10,.1f} samples/s   {c.ratio:.3f} "
        f"({c.low:.3f} to {c.high:.3f}), {c.pairs} rounds of {c.steps_per_window} steps"
    )


def paired_losses(name: str, samples: int, args: argparse.Namespace) -> dict[str, float]:
    """Train eagerly and captured, or captured in bf16 and with FP8, on the same batches; the mean
    difference of the losses of the last half, and its standard error over the seeds."""
    network, differences = networks.build(name), []
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
    parser.add_argument("--peers", default="; ".join(PEERS[1:]), help="names, between semicolons")
    parser.add_argument("--precision", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--fp8", default="", metavar="LAYERS", help="layers in FP8, such as '*'")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--losses", type=int, default=0, help="also train paired, as many steps")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    args = parser.parse_args()
    if args.fp8 and args.precision != "bf16":
        parser.error("--fp8 needs --precision bf16")
    args.peers = [name.strip() for name in args.peers.split(";") if name.strip()]
    if unknown := [name for name in args.peers if name not in PEERS]:
        parser.error(f"--peers: {'; '.join(unknown)}; known: {'; '.join(PEERS)}")
    args.cases = [case.partition(":")[::2] for case in args.cases.split(",")]
    known = [*TORCHVISION, "gpt2"]
    if wrong := [n for n, batch in args.cases if n not in known or not batch.isdecimal()]:
        parser.error(f"--cases: {', '.join(wrong)}; NETWORK:BATCH, of {', '.join(known)}")
    args.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    return args


def write(args: argparse.Namespace, lines: list[Line], losses: dict[str, Any]) -> None:
    """Write what was found so far to the file of `--json`, if given."""
    if args.json:
        options = {k: v for k, v in vars(args).items() if k not in ("json", "dtype")}
        found = {"schema": 1, "torch": version("torch"), "gpu": torch.cuda.get_device_name()}
        with open(args.json, "w") as file:
            rows = [asdict(line) for line in lines]
            json.dump({**found, **options, "lines": rows, "losses": losses}, file, indent=2)


def main() -> int:
    """Compare and print; the result does not change the exit code."""
    args = arguments()
    if not torch.cuda.is_available():
        print("absent: a GPU that PyTorch can use")
        return 2
    torch.backends.cudnn.benchmark = True
    lines, losses = [], {}
    for name, batch in args.cases:
        lines += compare_case(name, int(batch), args)
        if args.losses:
            losses[f"{name}:{batch}"] = paired_losses(name, int(batch), args)
        write(args, lines, losses)
    ratios: dict[str, float] = {}
    for line in lines:
        if line.found is not None:
            case = f"{line.network}:{line.batch}"
            ratios[case] = min(ratios.get(case, math.inf), line.found.low)
    for case, ratio in ratios.items():
        print(f"{case}: at least {ratio:.3f} of the best peer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
