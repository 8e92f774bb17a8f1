"""PyTorch around a training step of the user's own code: synchronization, profile, memory, FLOPs.

The code decides precision, layout and everything else; only the number of threads is set here.
FLOPs are counted by dispatch (torch.utils.flop_counter): products, convolutions and attention,
forward and backward, a multiply-add as two. Kernels that are not operators of PyTorch, such as a
replayed CUDA graph or Triton, are not seen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cubemesh.frameworks.contract.program import OwnStepProgram, monotonic_s
from cubemesh.frameworks.pytorch.profiling import profiler
from cubemesh.schema.profile import Profile
from cubemesh.units import format_quantity

MOST_OPERATORS = 5
"""Operators that are named with their FLOPs."""


class PyTorchOwnStep:
    """An `OwnStepProgram`."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._kind = device.partition(":")[0]

    def synchronize(self) -> None:
        """Wait for the device; on a GPU the current one, which the code may have chosen."""
        if self._kind == "cuda":
            torch.cuda.synchronize()

    clock = staticmethod(monotonic_s)

    def peak_memory_bytes(self) -> int | None:
        """Peak of PyTorch's allocated GPU memory; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self._kind == "cuda" else None

    def profile(
        self, run: Callable[[], None], *, layers: bool = False, trace: str | None = None
    ) -> Callable[[], Profile]:
        """See `SupportsProfiling`; no layers are known."""
        return profiler.profile(run, kind=self._kind, layers={}, trace=trace)

    def count_flops(self, run: Callable[[], None]) -> tuple[float, str]:
        """See `OwnStepProgram`."""
        # Imported here: a first import takes tenths of a second, and no other run needs it.
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            run()
        by_operator = counter.get_flop_counts().get("Global", {})
        largest = sorted(by_operator.items(), key=lambda pair: -pair[1])[:MOST_OPERATORS]
        named = ", ".join(f"{op} {format_quantity(flops, 'FLOP')}" for op, flops in largest)
        method = "operators dispatched in one step, by torch.utils.flop_counter"
        return float(counter.get_total_flops()), f"{method}: {named}" if named else method


def build_own_step(device: str, threads: int) -> OwnStepProgram:
    """See `SupportsOwnSteps`."""
    torch.set_num_threads(threads)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    return PyTorchOwnStep(device)
