"""The two programs of `ddp_peer.py`: a rank's step written by hand, and cubemesh's own.

Both train the same network with the same optimizer, on a minibatch that is copied once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from handwritten import NETWORKS

RATE, MOMENTUM = 0.01, 0.9
LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}


def stock_step(args: Any, batch: Batch, device: str, *, together: bool) -> Callable[[], None]:
    """What one writes by hand: the module, DistributedDataParallel around it, SGD."""
    layout = torch.channels_last if args.layout == "nhwc" else torch.contiguous_format
    torch.manual_seed(0)
    module = NETWORKS[args.network](batch.images.shape[-1], args.classes)
    module.to(device, memory_format=layout).train()
    kind = torch.device(device).type
    run: Any = module
    if together:
        run = DistributedDataParallel(
            module,
            device_ids=[device] if kind == "cuda" else None,
            gradient_as_bucket_view=True,
            static_graph=True,
        )
    if args.compile:
        run = torch.compile(run)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    low_precision = LOW_PRECISION[args.precision]
    x = torch.from_numpy(batch.images).to(device, memory_format=layout)
    y = torch.from_numpy(batch.labels).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, low_precision) if low_precision else nullcontext():
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    return step


def our_step(args: Any, batch: Batch, device: str, group: Any) -> Callable[[], None]:
    """cubemesh's program and exchange, its batch placed once."""
    framework = "pytorch-compiled" if args.compile else "pytorch"
    sync = "all-reduce" if group.size > 1 else "none"
    network = networks.build(args.network)
    request = BuildRequest(
        network=network,
        work=TrainSteps(
            network=args.network,
            batch_per_device=args.batch,
            learning_rate=RATE,
            momentum=MOMENTUM,
        ),
        placement=Placement(),
        program=ProgramSettings(
            framework=framework,
            precision=args.precision,
            layout=args.layout,
            sync=sync,
            compile_by=args.compile_by,
        ),
        sync=strategies.make(sync, group),
        device=device,
        threads=args.threads,
        group=group,
    )
    program = entry(framework).load().build(request)
    placed = program.place(batch)
    if isinstance(program, SupportsCompilation):
        program.compile(placed)
    program.load(network.draw(0))
    return lambda: program.train_step(placed)
