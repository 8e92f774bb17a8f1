"""Own kernels of inference on a GPU against torch.compile in fp16, interleaved in one process.

Sides: cubemesh's program in fp16 and in 8-bit integers, tuned on this device, and torchvision's
module in fp16, channels last, under `torch.compile` (`--mode`), replayed as one
CUDA graph. All have their input on the device and leave their scores there. Each round runs every
side for a window, in an order drawn for the round; ratios are medians over rounds with their 95 %
interval.

    python benchmarks/gpu_inference.py --network resnet-50 --batches 64,256 --json gpu.json

The 8-bit weights are calibrated with random images: this measures time, not accuracy. Without a
GPU or without torchvision it prints `absent` and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from cubemesh import networks
from cubemesh.inference.build import with_free_batch
from cubemesh.inference.gpu.lower import lower
from cubemesh.inference.gpu.session import GpuSession
from cubemesh.inference.passes import optimize
from cubemesh.inference.quantization.calibrate import calibrate
from cubemesh.inference.quantization.quantize import observed_values, quantize
from cubemesh.inference.timing import interleaved_latencies
from cubemesh.onnx.engines import ENGINES
from cubemesh.onnx.export import graph_of
from cubemesh.schema.serialization import to_plain

STOCK = {"resnet-50": "resnet50", "resnet-18": "resnet18", "vgg16": "vgg16", "alexnet": "alexnet"}
"""cubemesh's name → torchvision's."""
STOCK_SIDE = "torch.compile fp16"


def stock_side(network: str, images: torch.Tensor, mode: str) -> Callable[[], None]:
    """torchvision's module, compiled and captured; a call replays it and waits."""
    from torchvision import models

    model = getattr(models, STOCK[network])(weights=None).cuda().eval().half()
    model.to(memory_format=torch.channels_last)
    x = images.half().contiguous(memory_format=torch.channels_last)
    run = torch.compile(model, mode=mode)
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(x)

    def replay() -> None:
        graph.replay()
        torch.cuda.current_stream().synchronize()

    return replay


def own_graphs(name: str) -> dict[str, object]:
    """The optimized graph, and the same in 8-bit integers."""
    network = networks.build(name)
    graph, _ = optimize(with_free_batch(graph_of(network, dict(network.draw(0))), {}))
    value = graph.inputs[0]
    random = np.random.default_rng(0)
    images = random.standard_normal((16, *value.shape[1:])).astype(np.float32)
    engine = ENGINES["onnxruntime"].load()
    calibration = calibrate(
        graph,
        lambda content: engine.open_session(content, threads=16),
        [{value.name: images}],
        observed_values(graph),
    )
    return {"fp16": graph, "int8": quantize(graph, calibration, "entropy", sums=True)}


def main() -> int:
    """Measure and print every batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet-50", choices=sorted(STOCK))
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each batch size")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available() or importlib.util.find_spec("torchvision") is None:
        print("absent: a GPU and torchvision are needed")
        return 2
    graphs = own_graphs(args.network)
    found: dict[str, object] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for batch in map(int, args.batches.split(",")):
        sides: dict[str, Callable[[], object]] = {}
        for name, graph in graphs.items():
            session = GpuSession(lower(graph), batch, "cuda:0", tune=True)
            shape = (batch, *session.program.input_shape)
            images = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            session.put({session.program.input: images})
            sides[name] = session.replay
        sides[STOCK_SIDE] = stock_side(args.network, torch.from_numpy(images).cuda(), args.mode)
        latencies = interleaved_latencies(sides, seconds=args.seconds)
        found[str(batch)] = to_plain(latencies)
        stock = latencies[STOCK_SIDE].seconds
        for name, one in latencies.items():
            print(
                f"{args.network} {batch}: {name:18} {one.seconds * 1e3:.3f} ms "
                f"({one.low * 1e3:.3f} to {one.high * 1e3:.3f}), {batch / one.seconds:,.0f} "
                f"images/s, {stock / one.seconds:.2f} × torch.compile",
                flush=True,
            )
        torch.compiler.reset()
        del sides, session
        torch.cuda.empty_cache()
        if args.json is not None:
            args.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
