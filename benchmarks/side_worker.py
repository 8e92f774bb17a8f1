"""One training program, built from a description: cubemesh's, or a framework's usual code.

As a script it is a process of its own, for comparisons in which each side needs its own framework
environment, threads or memory. It reads numbers of steps, one per line, and answers each with the
seconds of processor time they took; it ends with its input.

    python benchmarks/side_worker.py '{"peer": "stock eager", "network": "little-cnn", …}'
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from ab_comparison import Side, cubemesh_side, random_batch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from handwritten_comparison import MOMENTUM, PEERS, RATE

OURS = "cubemesh"
STOCK = {
    "stock eager": (False, "nchw"),
    "stock eager nhwc": (False, "nhwc"),
    "stock compiled": (True, "nchw"),
    "stock compiled nhwc": (True, "nhwc"),
}
"""Stock PyTorch → (whether it is compiled, layout)."""
TORCHVISION = {"resnet-50": "resnet50", "resnet-18": "resnet18", "alexnet": "alexnet"}


@dataclass(frozen=True, kw_only=True)
class SideSpec:
    """A side, described."""

    peer: str
    """`OURS`, one of `STOCK`, or one of `PEERS`."""
    network: str
    batch: int
    precision: Any = "fp32"
    device: str = "cpu"
    threads: int = 1
    framework: str = "pytorch"
    """Of cubemesh's."""
    layout: Any = "nchw"
    """Of cubemesh's."""
    copies: bool = False
    """Whether cubemesh's copies the batch in every step, as TensorFlow and Keras do."""


def build(wanted: SideSpec) -> Side:
    """The side, its batch placed."""
    network = networks.build(wanted.network)
    batch = random_batch(network, wanted.batch)
    request = request_for(wanted, network)
    if wanted.peer in STOCK:
        return stock(wanted, network, batch)
    if wanted.peer != OURS:
        peer = PEERS[wanted.peer]
        return (peer.placed or peer.make)(network, request, batch)
    if wanted.copies:
        return cubemesh_side(wanted.framework, request, batch)
    return ours(request, batch)


def request_for(wanted: SideSpec, network: Network) -> BuildRequest:
    """What cubemesh's program is built from."""
    return BuildRequest(
        network=network,
        work=TrainSteps(
            network=network.name,
            batch_per_device=wanted.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
        ),
        placement=Placement(),
        program=ProgramSettings(
            framework=wanted.framework, precision=wanted.precision, layout=wanted.layout
        ),
        sync=strategies.make("none"),
        device=wanted.device,
        threads=wanted.threads,
    )


def ours(request: BuildRequest, batch: Batch) -> Side:
    """The program with resident data."""
    program = entry(request.program.framework).load().build(request)
    placed = program.place(batch)
    if isinstance(program, SupportsCompilation):
        program.compile(placed)
    program.load(request.network.draw(0))
    return Side(step=lambda: program.train_step(placed), synchronize=program.synchronize)


def stock(wanted: SideSpec, network: Network, batch: Batch) -> Side:
    """PyTorch as its tutorials write it: autocast, SGD with momentum, fused."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    from cubemesh.frameworks.pytorch.runtime import AUTOCAST_TYPES, MEMORY_FORMATS

    compiled, layout_name = STOCK[wanted.peer]
    kind, layout = wanted.device.partition(":")[0], MEMORY_FORMATS[layout_name]
    if kind == "cpu":
        torch.set_num_threads(wanted.threads)
    module = stock_module(network)
    module.to(wanted.device, memory_format=layout).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    run = torch.compile(module) if compiled else module
    low_precision = AUTOCAST_TYPES.get(wanted.precision)
    x = torch.from_numpy(batch.images).to(wanted.device, memory_format=layout)
    y = torch.from_numpy(batch.labels).to(wanted.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, low_precision, enabled=low_precision is not None):
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    wait = (lambda: None) if kind == "cpu" else torch.cuda.synchronize
    return Side(step=step, synchronize=wait)


def stock_module(network: Network) -> Any:
    """torchvision's where it is installed and has the network, else one written by hand."""
    if network.name in TORCHVISION and importlib.util.find_spec("torchvision"):
        models = importlib.import_module("torchvision.models")
        return getattr(models, TORCHVISION[network.name])(weights=None)
    return getattr(importlib.import_module("handwritten"), network.name.replace("-", "_"))()


def serve(wanted: SideSpec) -> None:
    """Build, report it, then train as many steps as requested."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a framework prints is no answer
    if wanted.device == "cpu":
        own = sorted(os.sched_getaffinity(0))[: wanted.threads]
        os.sched_setaffinity(0, own)  # every framework takes as many threads as it has cores
    side = build(wanted)
    answers.write("ready\n")
    for line in sys.stdin:
        start = time.process_time()
        for _ in range(int(line)):
            side.step()
        side.synchronize()
        answers.write(f"{time.process_time() - start}\n")


if __name__ == "__main__":
    serve(SideSpec(**json.loads(sys.argv[1])))
