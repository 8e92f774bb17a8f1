"""Time of additive attention scores: Triton kernels against PyTorch's own operations.

v · tanh(query + key) of all pairs, forward and backward, for each width: PyTorch's sum, tanh and
product, and the kernels. The lower bound by bytes reads and writes each array once at the rate of a
large copy in the same process. The kernels are far above it: they compute the tanh of every pair
and feature once forward and twice backward, which is the lower bound by tanh, at 2 special
functions each and 16 of those per SM and clock.

    python benchmarks/score_kernels.py --batch 64 --length 50 --widths 512,1024 --json scores.json

Without a GPU or Triton it prints `absent` and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from typing import Any

import pynvml
import torch
from torch import nn

from cubemesh.kernels.cuda_events import both_passes_ms, time_ms
from cubemesh.kernels.fused.additive_attention import FusedAttentionScores

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
COPY_BYTES = 1 << 30
SPECIAL_PER_CLOCK = 16
"""Special functions (exponential, reciprocal) per SM and clock (CUDA C++ Programming Guide,
throughput of native arithmetic instructions, compute capability 9.0)."""
SPECIAL_OF_TANH = 2


def copy_bytes_per_s() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / time_ms(lambda: torch.add(source, 1, out=target)) * 1e3


def special_per_s() -> float:
    """Special functions per second of the whole GPU at its highest clock."""
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    megahertz = pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM)
    cores = torch.cuda.get_device_properties(0).multi_processor_count
    return float(cores * SPECIAL_PER_CLOCK * megahertz * 1e6)


def floors_ms(batch: int, length: int, width: int, size: int) -> tuple[float, float]:
    """(by bytes, by tanh), of both passes."""
    vectors, scores = 2 * batch * length * width, batch * length * length
    moved = size * (vectors + scores + 2 * vectors + scores)
    tanhs = 3 * scores * width
    by_tanh = tanhs * SPECIAL_OF_TANH / special_per_s()
    return 1e3 * moved / copy_bytes_per_s(), 1e3 * by_tanh


def row(batch: int, length: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """(forward, backward) in milliseconds of each implementation for one width."""
    op = FusedAttentionScores(nn.Linear(width, 1, bias=False, device="cuda", dtype=dtype))
    queries, keys = (
        torch.randn(batch, length, width, device="cuda").to(dtype).requires_grad_()
        for _ in range(2)
    )
    wanted = [queries, keys, op.product.weight]
    ways: dict[str, tuple[float, float]] = {}
    for name in ("PyTorch", "kernels"):
        op.kernels = name == "kernels"
        ways[name] = both_passes_ms(lambda: op(queries, keys), wanted)
    by_bytes, by_tanh = floors_ms(batch, length, width, queries.element_size())
    return {"width": width, "ways": ways, "by_bytes_ms": by_bytes, "by_tanh_ms": by_tanh}


def text(found: dict[str, Any]) -> str:
    """The lines of one width."""
    lines = [
        f"width {found['width']}: lower bound by bytes {found['by_bytes_ms']:.4f} ms, by tanh "
        f"{found['by_tanh_ms']:.4f}"
    ]
    own = sum(found["ways"]["PyTorch"])
    for name, (forward, backward) in found["ways"].items():
        both = forward + backward
        lines.append(
            f"    {name:8} {forward:8.4f} + {backward:8.4f} = {both:8.4f} ms, {own / both:5.2f}"
        )
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    """Time every implementation for every width and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=50, help="positions of both sequences")
    parser.add_argument("--widths", default="512,1024,2048")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args(given)
    if not torch.cuda.is_available() or find_spec("triton") is None:
        print("absent: a GPU that PyTorch can use, and Triton")
        return 2
    rows = []
    for width in map(int, args.widths.split(",")):
        rows.append(row(args.batch, args.length, width, DTYPES[args.dtype]))
        print(text(rows[-1]), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            settings = {k: v for k, v in vars(args).items() if k != "json"}
            json.dump({"schema": 1, **settings, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
