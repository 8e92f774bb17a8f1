"""Gradient styles: how frameworks send gradients, named by framework and year.

A style says what a strategy's name does not: whether gradients of 16-bit training are sent as
32-bit floats, whether as one flat buffer, whole arrays or buckets, whether hidden behind the
backward pass, how devices of a system add theirs up, and what joins the systems. A style is data;
`style_time` (forecast/gradient_sync.py) says how long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    cycle_s: float = 0.0
    """What is ready is sent so often."""
    one_ring: bool = False
    """Whether NCCL 1 sends, whose single ring uses one link of each device."""
    sync: str = ""
    """A name of `COSTS` or `STYLE_COSTS` (forecast/gradient_sync.py), whose transfers it has
    instead of all of these."""


HOROVOD = GradientStyle(
    framework="Horovod",
    years="2018 on",
    source="A. Sergeev and M. Del Balso 2018; horovod/horovod, docs/tensor-fusion.rst and "
    "docs/autotune.rst: HOROVOD_FUSION_THRESHOLD of 64 MB, HOROVOD_CYCLE_TIME of 5 ms",
    bucket_bytes=64 * MIB,
    cycle_s=5e-3,
)
ONEFLOW = GradientStyle(
    framework="OneFlow",
    years="2020 to 2021",
    source="J. Yuan et al., OneFlow, 2021; Oneflow-Inc/OneFlow-Benchmark, v0.2.0: "
    "nccl_fusion_threshold_mb of 16; weights and their gradients have 32 bits",
    bucket_bytes=16 * MIB,
)
STYLES: dict[str, GradientStyle] = {
    "ddp": GradientStyle(
        framework="PyTorch DistributedDataParallel",
        years="2020 on",
        source="S. Li et al., PyTorch Distributed, VLDB 2020, section 3.2: buckets of 25 MB",
        bucket_bytes=25 * MIB,
    ),
    "apex": GradientStyle(
        framework="NVIDIA Apex, DistributedDataParallel",
        years="2018 to 2021",
        source="NVIDIA/apex, apex/parallel/distributed.py: message_size of 10,000,000 elements",
        as_computed=True,
        bucket_bytes=40e6,
    ),
    "apex-delayed": GradientStyle(
        framework="NVIDIA Apex, delay_allreduce",
        years="2018 to 2021",
        source="NVIDIA/apex, apex/parallel/distributed.py: all gradients after the backward pass",
        as_computed=True,
        hidden=False,
    ),
    "horovod": HOROVOD,
    "horovod-as-computed": replace(HOROVOD, framework="Horovod, 16-bit weights", as_computed=True),
    "horovod-two-level": replace(
        HOROVOD, framework="Horovod, HOROVOD_HIERARCHICAL_ALLREDUCE", inside="reduce"
    ),
    "tensorflow-mirrored": GradientStyle(
        framework="TensorFlow 2, MirroredStrategy",
        years="2019 on",
        source="tensorflow/tensorflow, cross_device_ops.py: NcclAllReduce(num_packs=1), called "
        "by apply_gradients",
        hidden=False,
    ),
    "tensorflow-replicated": GradientStyle(
        framework="TensorFlow, variable_update=replicated",
        years="2017",
        source="TensorFlow benchmarks page, May 2017: each variable on its own, without NCCL",
        bucket_bytes=0,
    ),
    "tensorflow-replicated-nccl": GradientStyle(
        framework="TensorFlow, variable_update=replicated with NCCL",
        years="2017 to 2018",
        source="TensorFlow benchmarks page, May 2017; NVIDIA/nccl v1.3: one ring",
        hidden=False,
        one_ring=True,
    ),
    "tensorflow-parameter-server": GradientStyle(
        framework="TensorFlow, variable_update=parameter_server on the CPU",
        years="2016 to 2018",
        source="TensorFlow benchmarks page, May 2017: variables in the host's memory",
        sync="host-copies",
    ),
    "tensorflow-servers": GradientStyle(
        framework="TensorFlow, variables spread over GPUs, or over parameter servers",
        years="2016 to 2018",
        source="TensorFlow benchmarks page, May 2017: parameter_server/gpu, distributed_replicated",
        sync="parameter-server-spread",
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
    "caffe": GradientStyle(
        framework="NVCaffe, NCCL 1",
        years="2016",
        source="NVIDIA/caffe, src/caffe/parallel.cpp: ncclAllReduce; NVIDIA/nccl v1.3: one ring",
        hidden=False,
        one_ring=True,
    ),
    "paddle-local": GradientStyle(
        framework="PaddlePaddle v2, trainer_count",
        years="2016",
        source="PaddlePaddle/Paddle, paddle/gserver/gradientmachines/MultiGradientMachine.h: "
        "gradients go round a ring of GPUs, layer by layer",
        bucket_bytes=0,
    ),
    "paddle-nccl": GradientStyle(
        framework="PaddlePaddle Fluid, a process for each GPU",
        years="2018 to 2020",
        source="PaddlePaddle/Paddle 1.8, FLAGS_sync_nccl_allreduce=1: waits for each all-reduce",
        bucket_bytes=0,
        hidden=False,
    ),
    "paddle-parameter-server": GradientStyle(
        framework="PaddlePaddle v2 and Fluid, pserver",
        years="2016 to 2018",
        source="PaddlePaddle/Paddle, benchmark/cluster/vgg16: trainers and pservers over TCP",
        hidden=False,
        inside="none",
        between="servers",
    ),
    "oneflow": ONEFLOW,
    "oneflow-clipped": replace(
        ONEFLOW,
        framework="OneFlow, gradients clipped by their global norm",
        bucket_bytes=None,
        hidden=False,
    ),
    "mindspore": GradientStyle(
        framework="MindSpore",
        years="2020 to 2021",
        source="mindspore-ai/mindspore, model_zoo/official/cv/resnet: "
        "all_reduce_fusion_config=[85, 160], three buckets",
        bucket_bytes=40e6,
    ),
}
"""By the name that `--style` takes."""


def check_style(name: str) -> None:
    """UsageError naming the nearest where `name` is neither a style nor empty."""
    if name and name not in STYLES:
        raise unknown_name("style", name, STYLES)
