"""Profiler of PyTorch steps: `SupportsProfiling` by torch.autograd.profiler (Kineto), which
torch.profiler.profile adds schedules to, with an import of PyTorch's compiler that takes seconds.

Recorded are, on a GPU, kernels and runtime calls only (CUPTI activities), since recording operators
slows the host that launches them; on a CPU the operators, without shapes or stacks. With layers,
operators are always recorded, and hooks annotate each layer's forward pass.

Kineto's times, nanoseconds since 1970, are converted to the program's clock by reading both clocks
in succession."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.profiler import record_function

from cubemesh.frameworks.contract.program import monotonic_s
from cubemesh.frameworks.pytorch.profiling.kineto import LAYER, read_trace
from cubemesh.schema.profile import Profile


def profile(
    run: Callable[[], None],
    *,
    kind: str,
    layers: Mapping[str, nn.Module],
    trace: str | None,
) -> Callable[[], Profile]:
    """Call `run` and return a function that reads its profile on a device of `kind` (`cpu`,
    `cuda`), by layer where `layers` are given. `trace`: a file to save the trace in."""
    gpu = kind == "cuda"
    with ExitStack() as stack:
        for name, layer in layers.items():
            _annotate(name, layer, stack)
        profiler = stack.enter_context(
            autograd_profiler.profile(
                use_cpu=bool(layers) or not gpu,
                use_device="cuda" if gpu else None,
                use_kineto=True,
            )
        )
        offset_ns = _offset_ns()
        run()

    def read() -> Profile:
        found = _exported(profiler, trace)
        return Profile(
            events=read_trace(found, lambda ns: (ns - offset_ns) / 1e9),
            by_layer=bool(layers),
        )

    return read


def _offset_ns() -> int:
    """Nanoseconds since 1970 minus the program's clock: of five pairs of readings the closest."""
    pairs = []
    for _ in range(5):
        before = monotonic_s()
        wall_ns = time.time_ns()
        after = monotonic_s()
        pairs.append((after - before, wall_ns - round((before + after) / 2 * 1e9)))
    return min(pairs)[1]


def _exported(profiler: autograd_profiler.profile, trace: str | None) -> Any:
    """The trace as data, via a file, the documented interface."""
    with tempfile.TemporaryDirectory() as folder:
        path = trace or os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)  # type: ignore[no-untyped-call]
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file)


def _annotate(name: str, layer: nn.Module, until: ExitStack) -> None:
    """Annotate the forward pass of a layer with its name, until the stack is closed."""
    scopes: list[record_function] = []

    def enter(module: nn.Module, args: Any) -> None:
        scopes.append(record_function(f"{LAYER}{name}"))
        scopes[-1].__enter__()  # type: ignore[no-untyped-call]

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        scopes.pop().__exit__(None, None, None)

    until.enter_context(layer.register_forward_pre_hook(enter))
    until.enter_context(layer.register_forward_hook(leave))
