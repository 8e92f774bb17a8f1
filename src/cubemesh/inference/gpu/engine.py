"""Own kernels as an engine of plans: models of convolutional networks on an NVIDIA GPU.

fp32 models are computed in fp16; models whose products, sums and pools are in 8-bit integers in
those. The tilings of the kernels are measured when a plan is built and are part of it.
"""

from __future__ import annotations

from pathlib import Path

from cubemesh.inference.gpu.lower import lower
from cubemesh.inference.gpu.session import GpuSession, Kernels
from cubemesh.inference.passes import optimize
from cubemesh.onnx.reader import parse


def available() -> tuple[str, ...]:
    """fp16, and 8-bit integers where the model says so."""
    return ("fp16",)


def open_session(
    content: bytes | Path,
    *,
    threads: int,
    precision: str = "fp16",
    device: str = "cuda:0",
    batch: int | None = None,
    kernels: Kernels | None = None,
    tune: bool = False,
) -> GpuSession:
    """See `Engine`. `kernels`: tilings by description; with `tune` those that are missing are
    measured. ValueError, which ends a sentence, for a network without kernels."""
    if not isinstance(content, bytes):
        content = content.read_bytes()
    if batch is None:
        raise ValueError("a plan on a GPU has fixed batch sizes")
    graph, _ = optimize(parse(content))
    return GpuSession(lower(graph), batch, device, kernels, tune=tune)
