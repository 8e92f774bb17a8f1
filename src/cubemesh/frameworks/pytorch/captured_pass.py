"""Inference pass as one CUDA graph: a pass of a few small samples takes a GPU less time than the
host needs for launching its kernels one by one.

    first pass    the function twice (compiles; cuDNN times its algorithms), then its capture
    each pass     inputs copied into the graph's static inputs ─ replay
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cubemesh.frameworks.pytorch.runtime import on_stream

PASSES_BEFORE_CAPTURE = 2


class CapturedPass:
    """`run`, a function of inputs on one GPU, replayed as a CUDA graph for inputs of the shapes of
    its first call; others run uncaptured. Its result is overwritten by the next call."""

    def __init__(self, run: Callable[..., Tensor], device: str) -> None:
        self._run, self._device = run, device
        self.reset()

    def reset(self) -> None:
        """Capture again at the next call: weights that the graph holds have changed."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result = torch.empty(0)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Queue a pass."""
        if self._graph is None:
            self._capture(inputs)
        if any(own.shape != x.shape for own, x in zip(self._inputs, inputs, strict=True)):
            return self._run(*inputs)
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        assert self._graph is not None
        self._graph.replay()
        return self._result

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        """Capture a pass, which does not execute it."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._inputs = tuple(x.clone() for x in inputs)
        with on_stream(stream):
            for _ in range(PASSES_BEFORE_CAPTURE):
                self._run(*self._inputs)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._result = self._run(*self._inputs)
        self._graph = graph
