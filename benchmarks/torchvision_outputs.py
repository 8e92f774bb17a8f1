"""Outputs of cubemesh's networks and of torchvision's with the same weights.

Weights are drawn, copied into torchvision's module and into the program's, and both get the same
random images: in evaluation, and in training mode without dropout (every head, and batch
normalization over the minibatch). Arrays are matched by name where both have it, else by their
order, which is the order of use; shapes must agree in either case.

    python benchmarks/torchvision_outputs.py --device cuda:0 --precision fp64

Prints parameters and the largest difference relative to torchvision's largest output for each
network. Exit code 1 if a network differs, 2 if torchvision is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cubemesh import networks
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.runtime import prepare

LIMITS = {"fp64": 1e-9, "fp32": 1e-4}
"""Largest difference allowed by the precision."""
TYPES = {"fp64": torch.float64, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A network of torchvision's."""

    maker: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    auxiliary_last: bool = False
    """Whether torchvision gives the scores before those of the auxiliary head; the graph runs the
    auxiliary head first."""


_PLAIN = {"weights": None}
TWINS: dict[str, Twin] = {
    "alexnet": Twin(maker="alexnet", settings=_PLAIN),
    "vgg16": Twin(maker="vgg16", settings=_PLAIN),
    "googlenet": Twin(
        maker="googlenet", settings={**_PLAIN, "aux_logits": False, "init_weights": False}
    ),
    "inception-v3": Twin(
        maker="inception_v3",
        settings={**_PLAIN, "aux_logits": True, "init_weights": False},
        auxiliary_last=True,
    ),
    "resnet-50": Twin(maker="resnet50", settings=_PLAIN),
    "resnet-101": Twin(maker="resnet101", settings=_PLAIN),
    "resnet-152": Twin(maker="resnet152", settings=_PLAIN),
    "vit-b16": Twin(maker="vit_b_16", settings=_PLAIN),
}


RENAMED = {
    "running_var": "running_variance",
    "class_token": "class_token.token",
    "pos_embedding": "pos_embedding.weight",
    "in_proj_weight": "in_proj.weight",
    "in_proj_bias": "in_proj.bias",
}
"""WorkerExit of a name in torchvision → in the graph."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One network, compared; differences are relative to torchvision's largest output."""

    network: str
    parameters: int = 0
    theirs: int = 0
    evaluation: float = float("nan")
    training: float = float("nan")
    same: bool = False
    absent: str = ""


def differences(name: str, *, device: str, precision: str, batch: int) -> Result:
    """Compare the network `name`; ValueError where the arrays do not go over."""
    from torchvision import models

    if name not in networks.NETWORKS:
        return Result(network=name, absent="not among cubemesh's networks")
    twin, dtype = TWINS[name], TYPES[precision]
    network = networks.build(name)
    weights = network.draw(0)
    rng = np.random.default_rng(1)
    for own in network.state:  # not the trivial state it starts with
        drawn = rng.uniform(0.5, 1.5, weights[own].shape)
        weights[own] = (drawn - 1.0 if "mean" in own else drawn).astype(np.float32)
    built = build_modules(network, device=device, dtype=dtype)
    built.load(weights)
    theirs = getattr(models, twin.maker)(**twin.settings).to(device, dtype)
    copy_into(theirs, weights, list(network.parameters), list(network.state))
    for module in (*built.training.modules(), *theirs.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    images = torch.rand(batch, *network.inputs[0].shape, dtype=dtype).to(device)
    with torch.no_grad():
        theirs.eval()
        built.evaluation.eval()
        evaluation = distance(built.evaluation(images)[-1], theirs(images))
        theirs.train()
        built.training.train()
        ours, wanted = built.training(images), theirs(images)
    wanted = (wanted,) if isinstance(wanted, Tensor) else tuple(wanted)
    wanted = wanted[::-1] if twin.auxiliary_last else wanted
    training = max(distance(a, b) for a, b in zip(ours, wanted, strict=True))
    count = sum(p.numel() for p in theirs.parameters())
    limit = LIMITS[precision]
    return Result(
        network=name,
        parameters=network.parameter_count,
        theirs=count,
        evaluation=evaluation,
        training=training,
        same=max(evaluation, training) <= limit and count == network.parameter_count,
    )


def copy_into(
    module: nn.Module, weights: Mapping[str, Any], parameters: list[str], state: list[str]
) -> None:
    """Set the arrays of torchvision's `module`; ValueError naming the first that does not fit."""
    theirs = {
        renamed(name): array
        for name, array in module.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    if set(theirs) == set(weights):
        pairs = [(name, name) for name in theirs]
    else:
        trained = {renamed(name) for name, _ in module.named_parameters()}
        own = [name for name in theirs if name in trained]
        buffers = [name for name in theirs if name not in trained]
        if (len(own), len(buffers)) != (len(parameters), len(state)):
            raise ValueError(
                f"torchvision has {len(own)} parameters and {len(buffers)} buffers, the graph "
                f"{len(parameters)} and {len(state)}"
            )
        pairs = [*zip(own, parameters, strict=True), *zip(buffers, state, strict=True)]
    with torch.no_grad():
        for their_name, name in pairs:
            array = torch.from_numpy(weights[name])
            squeezed = [shape for shape in theirs[their_name].shape if shape != 1]
            if squeezed != [shape for shape in array.shape if shape != 1]:
                shapes = f"{tuple(theirs[their_name].shape)} and {tuple(array.shape)}"
                raise ValueError(f"{their_name} and {name} are of shapes {shapes}")
            theirs[their_name].copy_(array.reshape(theirs[their_name].shape))


def renamed(name: str) -> str:
    """What the graph calls torchvision's array `name`, where the two read alike."""
    for theirs, own in RENAMED.items():
        name = name.replace(theirs, own) if name.endswith(theirs) else name
    return name


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference by the largest value of `theirs`; NaN, which passes nothing, where
    that is all zeros."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(TWINS), help="names, between commas")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--precision", choices=sorted(LIMITS), default="fp64")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    args = parser.parse_args()
    unknown = set(args.networks.split(",")) - set(TWINS)
    if unknown:
        parser.error(f"{sorted(unknown)[0]} is not compared; {', '.join(TWINS)} are")
    return args


def main() -> int:
    """Compare and print."""
    args = arguments()
    if importlib.util.find_spec("torchvision") is None:
        print(f"absent: torchvision (install the one made for PyTorch {torch.__version__})")
        return 2
    torch.manual_seed(0)
    prepare(args.device, args.precision, torch.get_num_threads())
    print("network       parameters  torchvision's   evaluation    training  same")
    results = []
    for name in args.networks.split(","):
        try:
            r = differences(name, device=args.device, precision=args.precision, batch=args.batch)
        except (ValueError, AttributeError) as error:
            r = Result(network=name, absent=f"not compared: {error}")
        results.append(r)
        if r.absent:
            print(f"{name:12} {r.absent}", flush=True)
            continue
        print(
            f"{name:12} {r.parameters:11,} {r.theirs:14,} {r.evaluation:12.2e} "
            f"{r.training:11.2e}  {'yes' if r.same else 'NO'}",
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"schema": 1, "results": [asdict(r) for r in results]}, file, indent=2)
    return int(any(not r.same and r.network in networks.NETWORKS for r in results))


if __name__ == "__main__":
    sys.exit(main())
