"""Own kernels as an engine of plans: models of convolutional networks in 8-bit integers, on a CPU
with AVX512-VNNI or AMX."""

from __future__ import annotations

from pathlib import Path

from cubemesh.inference.cpu.lower import lower
from cubemesh.inference.cpu.session import CpuSession
from cubemesh.inference.plan_file import mapped_model
from cubemesh.kernels.cpu.int8.library import unsupported
from cubemesh.onnx.light_reader import graph_of_model

__all__ = ["available", "open_session", "unsupported"]


def available() -> tuple[str, ...]:
    """8-bit integers only."""
    return ()


def open_session(
    content: bytes | Path,
    *,
    threads: int,
    precision: str = "fp32",
    device: str = "cpu",
    batch: int | None = None,
) -> CpuSession:
    """See `Engine`. ValueError, which ends a sentence, for a network without kernels."""
    if batch is None:
        raise ValueError("these kernels are prepared for one batch size")
    reason = unsupported()
    if reason:
        raise ValueError(reason)
    whole = content if isinstance(content, bytes) else mapped_model(content)
    return CpuSession(lower(graph_of_model(whole)), batch, threads)
