"""Gradient styles: how frameworks send gradients, named by framework and year.

A style says what a strategy's name does not: whether gradients of 16-bit training are sent as
32-bit floats, whether as one flat buffer, whole arrays or buckets, whether hidden behind the
backward pass, how devices of a system add theirs up, and what joins the systems. A style is data;
`style_time` (forecast/gradient_sync.py) says how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cubemesh.errors import unknown_name

MIB = 1 << 20
Inside = Literal["all-reduce", "reduce", "host", "device", "none"]
Between = Literal["all-reduce", "servers"]


@dataclass(frozen=True, kw_only=True)
class GradientStyle:
    """How one framework sends gradients."""

    framework: str
    years: str
    source: str
    as_computed: bool = False
    """Whether 16-bit training sends 16-bit gradients; else they are sent as 32-bit floats."""
    bucket_bytes: float | None = None
    """Sent together; 0 for each layer's array on its own, None for one flat buffer."""
    hidden: bool = True
    """Whether they are sent while the backward pass runs, or all after it."""
    inside: Inside = "all-reduce"
    """In a system: `reduce` onto one device, which alone takes part between systems, and back;
    `host`: sum in the host's memory; `device`: each whole array summed on one of the devices;
    `none`: each device sends on its own."""
    between: Between = "all-reduce"
    """Between systems, or parameter servers, one a system."""


STYLES: dict[str, GradientStyle] = {
    "ddp": GradientStyle(
        framework="PyTorch DistributedDataParallel",
        years="2020 on",
        source="S. Li et al., PyTorch Distributed, VLDB 2020, section 3.2: buckets of 25 MB",
        bucket_bytes=25 * MIB,
    ),
    "apex-delayed": GradientStyle(
        framework="NVIDIA Apex, delay_allreduce",
        years="2018 to 2021",
        source="NVIDIA/apex, apex/parallel/distributed.py: all gradients after the backward pass",
        as_computed=True,
        hidden=False,
    ),
    "horovod": GradientStyle(
        framework="Horovod",
        years="2018 on",
        source="A. Sergeev and M. Del Balso 2018; HOROVOD_FUSION_THRESHOLD of 64 MB",
        bucket_bytes=64 * MIB,
    ),
    "horovod-two-level": GradientStyle(
        framework="Horovod, HOROVOD_HIERARCHICAL_ALLREDUCE",
        years="2018 on",
        source="horovod/horovod, docs/tensor-fusion.rst and HOROVOD_HIERARCHICAL_ALLREDUCE",
        bucket_bytes=64 * MIB,
        inside="reduce",
    ),
    "tensorflow-replicated": GradientStyle(
        framework="TensorFlow, variable_update=replicated",
        years="2017",
        source="TensorFlow benchmarks page, May 2017: NCCL, each variable on its own",
        bucket_bytes=0,
    ),
    "tensorflow-parameter-server": GradientStyle(
        framework="TensorFlow, parameter servers",
        years="2016 to 2018",
        source="TensorFlow benchmarks page, May 2017: variables in the hosts' memory, gRPC",
        bucket_bytes=0,
        inside="host",
        between="servers",
    ),
    "mxnet-device": GradientStyle(
        framework="MXNet, kvstore=device and dist_device_sync",
        years="2016 to 2019",
        source="T. Chen et al., MXNet, 2015; apache/mxnet, src/kvstore/comm.h, CommDevice",
        as_computed=True,
        bucket_bytes=0,
        inside="device",
        between="servers",
    ),
    "mxnet-dist-sync": GradientStyle(
        framework="MXNet, kvstore=local and dist_sync",
        years="2015 to 2019",
        source="T. Chen et al., MXNet, 2015; apache/mxnet, src/kvstore/kvstore_dist.h; M. Li 2014",
        as_computed=True,
        bucket_bytes=0,
        inside="host",
        between="servers",
    ),
    "paddle-parameter-server": GradientStyle(
        framework="PaddlePaddle v2 and Fluid, pserver",
        years="2016 to 2018",
        source="PaddlePaddle/Paddle, benchmark/cluster/vgg16: trainers and pservers over TCP",
        hidden=False,
        inside="none",
        between="servers",
    ),
}
"""By the name that `--style` takes."""


def check_style(name: str) -> None:
    """UsageError naming the nearest where `name` is neither a style nor empty."""
    if name and name not in STYLES:
        raise unknown_name("style", name, STYLES)
