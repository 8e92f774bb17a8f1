"""PyTorch, the whole training step captured: one launch a step, whatever it computes.

    step 1, 2     forward ─ backward ─ exchange ─ update      as they are; libraries settle
    step 3        the same, recorded as one CUDA graph, and replayed
    step 4, …     batch into the graph's own arrays ─ replay

Launching some hundred kernels one by one takes the host longer than a GPU needs for a small
minibatch; replaying a graph of them takes microseconds. What is captured is the network with its
fusions (`fused.py`), where it has any that are faster; exchanges are captured with it.

Where a step cannot be captured, on a CPU, with a loss scale that changes, with an exchange that is
more than a reduction, it runs as it is, and `not_captured` says why. On a CPU it is fused all the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from cubemesh.frameworks.api.gradient_sync import FinishesInOrder
from cubemesh.frameworks.api.program import BuildRequest, Capabilities
from cubemesh.frameworks.pytorch import runtime
from cubemesh.frameworks.pytorch.ceiling import build_ceiling
from cubemesh.frameworks.pytorch.compiled import SYNC_FEATURES, is_out_of_memory, preload
from cubemesh.frameworks.pytorch.distributed.buckets import GradientBuckets, without_gradients
from cubemesh.frameworks.pytorch.distributed.group import join
from cubemesh.frameworks.pytorch.distributed.launch import launch
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.input.host_to_device import Placed, low_precision_types
from cubemesh.frameworks.pytorch.precision.loss_scaling import DynamicScaling
from cubemesh.frameworks.pytorch.program import PyTorchProgram, total_loss
from cubemesh.frameworks.pytorch.runtime import other_precision, setup_process
from cubemesh.kernels.cpu.allocator import release_freed_memory
from cubemesh.schema.work import Train, TrainSteps

__all__ = [
    "build",
    "build_ceiling",
    "capabilities",
    "is_out_of_memory",
    "join",
    "launch",
    "other_precision",
    "preload",
    "release_freed_memory",
    "setup_process",
]

STEPS_BEFORE = 2
"""Steps that run as they are before one is captured: cuDNN tries its algorithms in the first, and
optimizers make their arrays."""


class CapturedProgram(PyTorchProgram):
    """The eager program, its step replayed as one graph; batch normalisations fused."""

    overwrites = False  # a captured array may be read again by the next replay
    shows_layers = False  # a fused kernel computes several

    def __init__(self, request: BuildRequest) -> None:
        self._stream: torch.cuda.Stream | None = None
        if request.device.startswith("cuda"):
            torch.cuda.set_device(request.device)  # here: leaving a stream goes back to its device
            self._stream = torch.cuda.Stream(request.device)  # type: ignore[no-untyped-call]
        with self._aside():
            super().__init__(request)
        self.fused = FusedNetwork(self._built)
        if self._gradients is not None:
            self.fused.place_of = self._gradients.place_of
        self._static_types = low_precision_types(request)
        self._why_not = self._reason()
        self._rate_changed = False
        self._updated: tuple[str, ...] = ()
        """Parameters of which the step under way has updated the weights already."""

    @property
    def not_captured(self) -> str:
        """See `SupportsCapture`."""
        if not self._why_not and self._rate_changed and self._graph is None:
            return "its learning rate changes from step to step, and a recorded step has one rate"
        return "; ".join(filter(None, (self._why_not, self.fused.unavailable_reason)))

    def _reason(self) -> str:
        if not isinstance(self._work, (TrainSteps, Train)):
            return "only training steps are captured"
        if self._kind != "cuda":
            return "a CPU has no graph of kernels to replay"
        if isinstance(self._scaling, DynamicScaling):
            return (
                "a dynamic loss scale looks at the gradients after each step; set a static "
                "loss_scale to capture"
            )
        if not self._exchange.capturable:
            return f"the exchange {self._exchange.name} does not do the same in every step"
        return ""

    def _forget(self) -> None:
        """Capture anew: the arrays, or what is done with them, are others."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: Placed = ()
        self._done = 0

    def compile(self, placed: Placed) -> bool | None:
        """Choose what each fusion runs as, by trying; `load` comes after it."""
        if self._why_not and self._kind == "cuda":
            return None
        with self._aside(), self._autocast:
            self.fused.tune(*placed[:-1])
        self.synchronize()
        torch.manual_seed(self._seed)  # dropout goes on as if nothing had been drawn
        if self._kind == "cuda":
            torch.cuda.empty_cache()
        return None

    def train_step(self, placed: Placed) -> None:
        """Queue a replay of the captured step; the first steps, and a batch of another shape than
        the captured one's, run as they are."""
        if self._why_not:
            self._step_as_it_is(placed)
            return
        if self._graph is None:
            self._done += 1
            if self._done <= STEPS_BEFORE:
                self._step_as_it_is(placed)
                return
            self._capture(placed)
        if not _alike(placed, self._static):
            self._step_as_it_is(placed)
            return
        assert self._graph is not None
        for own, given in zip(self._static, placed, strict=True):
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        self._loss = self._captured_loss

    def _step_as_it_is(self, placed: Placed) -> None:
        with self._aside():
            super().train_step(placed)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Within it work is queued on the stream that steps are captured on, behind what is queued
        and before what will be. All that has to do with gradients goes there, from the first hook
        on: PyTorch adds a gradient up on the stream on which it first met its parameter, and in a
        graph every other stream is a branch of its own, to which the GPU changes and back."""
        if self._stream is None:
            yield
            return
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            here.wait_stream(self._stream)

    def _capture(self, placed: Placed) -> None:
        """Record a step. Nothing is computed: the replay does."""
        assert self._optimizer is not None
        self._static = tuple(
            torch.empty_like(array, dtype=dtype or array.dtype)
            for array, dtype in zip(placed, (*self._static_types, None), strict=True)
        )
        self._optimizer.zero_grad(set_to_none=True)  # so that gradients lie in the graph's memory
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            super().train_step(self._static)
        self._graph, self._captured_loss = graph, self._loss

    def _end_exchange(self, gradients: GradientBuckets) -> None:
        """The last bucket is full when the backward pass ends, and then every rank would wait for
        it. In a captured step, where a launch more costs nothing, all other weights are updated
        meanwhile."""
        sync, (*early, last) = self._exchange, gradients.buckets
        if self._why_not or not early or not isinstance(sync, FinishesInOrder):
            super()._end_exchange(gradients)
            return
        sync.finish_but_last()
        gradients.widen(early)
        with without_gradients(self._built.parameters, last.parameters):
            super()._apply()
        sync.finish()
        gradients.widen([last])
        self._updated = tuple(name for bucket in early for name in bucket.parameters)

    def _apply(self) -> None:
        with without_gradients(self._built.parameters, self._updated):
            super()._apply()

    def _forward(self, placed: Placed) -> Tensor:
        *inputs, labels = placed
        with self._autocast:
            return total_loss(self._weights, self.fused(*inputs), labels)

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`. A step is captured anew once its rate has stood
        still for as many steps as run before a capture."""
        assert self._optimizer is not None, "only what trains has a rate"
        if any(group["lr"] != rate for group in self._optimizer.param_groups):
            self._rate_changed = True
            self._forget()
        super().set_learning_rate(rate)

    def _start_optimizer(self) -> None:
        super()._start_optimizer()
        for group in self._optimizer.param_groups if self._optimizer else ():
            if "capturable" in group:  # counts its steps on the device
                group["capturable"] = self._kind == "cuda"
        self._forget()

    def close(self) -> None:
        """Drop every array and the graph."""
        self._forget()
        del self.fused
        super().close()


def build(request: BuildRequest) -> CapturedProgram:
    """The program for `request`; its third step captures."""
    return CapturedProgram(request)


def capabilities() -> Capabilities:
    """Those of eager PyTorch, but for looking into layers, which may be fused, for precisions and
    normalisations that cannot be, and for networks cut apart. Kernels are chosen by their time, so
    they may be others every time."""
    able = runtime.capabilities()
    return replace(
        able,
        works=able.works - {"first_steps"},
        precision_by_layer=False,
        sync_features=SYNC_FEATURES,
        batch_norms=frozenset({"device"}),
        deterministic=False,
    )


def _alike(one: Placed, other: Placed) -> bool:
    return all(a.shape == b.shape for a, b in zip(one, other, strict=True))
