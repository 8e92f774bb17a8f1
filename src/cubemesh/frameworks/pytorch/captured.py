"""PyTorch with the whole training step captured as a CUDA graph: one launch per step.

    step 1, 2     forward ─ backward ─ gradient sync ─ update      eager; libraries warm up
    step 3        the same, captured as one CUDA graph, and replayed
    step 4, …     batch copied into the graph's static inputs ─ replay

Launching some hundred kernels separately takes the host longer than a GPU needs for a small batch;
replaying a graph takes microseconds. Each segment of the captured network runs by the fastest of
PyTorch's operations, fused kernels (`fused_network.py`) and Inductor (`segmented_loss.py`);
gradient synchronization is captured with it.

A step that cannot be captured (on a CPU, with a dynamic loss scale, with a synchronization that
differs from step to step) runs eagerly, and `not_captured` has the reason. Fusions are used on a
CPU too. A forward and backward pass without an update is captured like a step. An inference pass
is PyTorch's own operations, on a GPU as one graph (`captured_pass.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from cubemesh.batches import Array
from cubemesh.frameworks.contract.gradient_sync import FinishesInOrder
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.pytorch import runtime
from cubemesh.frameworks.pytorch.captured_pass import CapturedPass
from cubemesh.frameworks.pytorch.ceiling import build_ceiling
from cubemesh.frameworks.pytorch.compiled import (
    REPLICA_SYNC_FEATURES,
    cache_in_use,
    compiler_for,
    compiler_processes,
    is_out_of_memory,
    preload,
    run_with_cache_repair,
    set_up_compiler,
)
from cubemesh.frameworks.pytorch.distributed.buckets import GradientBuckets, without_gradients
from cubemesh.frameworks.pytorch.distributed.group import join
from cubemesh.frameworks.pytorch.distributed.launch import launch
from cubemesh.frameworks.pytorch.experts import check_capture
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.input.host_to_device import Placed, low_precision_types
from cubemesh.frameworks.pytorch.precision.loss_scaling import DynamicScaling, StaticScaling
from cubemesh.frameworks.pytorch.precision.low_precision_weights import (
    UPDATED,
    LowPrecisionWeights,
)
from cubemesh.frameworks.pytorch.program import PyTorchProgram, total_loss
from cubemesh.frameworks.pytorch.runtime import (
    AUTOCAST_TYPES,
    on_stream,
    other_precision,
    setup_process,
)
from cubemesh.frameworks.pytorch.segmented_loss import SegmentedLoss
from cubemesh.kernels.cpu.allocator import release_freed_memory
from cubemesh.schema.record import Breakdown, TimeRow
from cubemesh.schema.work import ForwardBackward, Infer, InferLoad, Training

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

STEPS_BEFORE_CAPTURE = 2
"""Eager steps before the capture: in the first, cuDNN times its algorithms and optimizers allocate
their state."""


class CapturedProgram(PyTorchProgram):
    """The eager program with fusions, its step replayed as one CUDA graph."""

    _copies: LowPrecisionWeights | None = None
    """Of large weights, from `compile` on."""
    _no_compiler = ""
    """Why Inductor was not tried; empty where it was, or nothing was to be compiled."""

    overwrites = False  # the next replay may read a captured array again
    profiles_layers = False  # a fused kernel computes several layers

    def __init__(self, request: BuildRequest) -> None:
        self._stream: torch.cuda.Stream | None = None
        if request.device.startswith("cuda"):
            set_up_compiler()
            torch.cuda.set_device(request.device)  # here: leaving a stream restores its device
            self._stream = torch.cuda.Stream(request.device)  # type: ignore[no-untyped-call]
        with self._capture_stream():
            super().__init__(request)
        check_capture(request)
        self.fused = FusedNetwork(self._built)
        if self._gradients is not None:
            self.fused.place_of = self._gradients.place_of
        self.segments = SegmentedLoss(
            self._built,
            self.fused,
            partial(total_loss, self._heads),
            merge=self._gradients is None,
            fused_loss=self._micro_batches == 1,
        )
        self._infers = isinstance(self._work, Infer | InferLoad)
        captured = self._infers and self._kind == "cuda"
        self._captured_scores = CapturedPass(self._scores, self.device) if captured else None
        self._static_types = low_precision_types(request)
        self._why_not = self._reason()
        self._rate_changed = False
        self._updated: tuple[str, ...] = ()
        """Parameters that the current step has already updated."""

    @property
    def not_captured(self) -> str:
        """See `SupportsCapture`."""
        if not self._why_not and self._rate_changed and self._graph is None:
            return "the learning rate changes at each step, and a captured step has a constant rate"
        return self._why_not

    @property
    def missing_kernels(self) -> str:
        """See `SupportsCapture`."""
        return self.fused.unavailable_reason or self._no_compiler

    @property
    def implementations(self) -> Breakdown | None:
        """See `SupportsCapture`."""
        rows = [
            TimeRow(
                name=f"{choice.segment}: {choice.implementation}",
                seconds=choice.milliseconds[choice.implementation] / 1e3,
                calls=1,
            )
            for choice in self.segments.choices
        ]
        if not rows:
            return None
        return Breakdown(
            name="segment",
            rows=tuple(sorted(rows, key=lambda row: -row.seconds)),
            method="fastest implementation of each segment, both passes, timed by itself before "
            "the run in a CUDA graph",
        )

    def _reason(self) -> str:
        if not isinstance(self._work, Training | ForwardBackward | Infer | InferLoad):
            return "a forward pass in training mode is not captured by itself"
        if self._kind != "cuda":
            return "CUDA graphs need a GPU, and this is a CPU"
        if self._infers:
            return ""
        if isinstance(self._scaling, DynamicScaling):
            return (
                "a dynamic loss scale depends on each step's gradients; set a static loss_scale "
                "to capture"
            )
        if not self._sync.capturable:
            return f"sync={self._sync.name} differs from step to step"
        return ""

    def _reset_capture(self) -> None:
        """Capture again: arrays or operations have changed."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: Placed = ()
        self._done = 0

    def compile(self, placed: Placed) -> bool | None:
        """Autotune the fusions and choose the implementation of each segment; call `load` after
        it."""
        if self._infers or (self._why_not and self._kind == "cuda"):
            return None
        placed = self._split(placed)[0]
        if self._kind == "cuda":
            placed = self._as_captured(placed)
        with self._capture_stream(), self._autocast:
            self.fused.tune(*placed[:-1])
        if self._kind == "cuda":
            self._choose_implementations(placed)
        self.synchronize()
        torch.manual_seed(self._seed)  # so that dropout draws the same numbers
        if self._kind == "cuda":
            torch.cuda.empty_cache()
        return None

    def _choose_implementations(self, placed: Placed) -> None:
        self.segments.loss_scale = self._loss_scale
        compiler, self._no_compiler = compiler_for(self.device)
        self._copy_weights()
        with compiler_processes(self._kind), self._capture_stream():
            with self._autocast:
                self.segments.choose(placed, compiler, _retried)
            if self._gradients is not None:
                self._gradients.paused = True  # these gradients are not synchronized
            _retried(partial(self._run_once, placed))  # compiles neighbours as one
            self._zero_grad()
            if self._gradients is not None:
                self._gradients.paused = False

    def _run_once(self, placed: Placed) -> None:
        """A forward and a backward pass."""
        self._forward(placed).backward()  # type: ignore[no-untyped-call]

    def _copy_weights(self) -> None:
        """Keep large weights in low precision too, on one device and under autocast: on several,
        gradients are synchronized in buckets. Not with several micro-batches, whose gradients would
        be accumulated in low precision."""
        dtype = AUTOCAST_TYPES.get(self._settings.precision)
        accumulates = self._micro_batches > 1
        if (
            self._gradients is not None
            or accumulates
            or dtype is None
            or find_spec("triton") is None
        ):
            return
        if isinstance(self._optimizer, UPDATED):
            weights = self.fused.product_weights()
            own = (weight for weight in weights if weight is not self.segments.loss_weight)
            self._copies = LowPrecisionWeights(own, dtype)
            self.fused.use_copies(self._copies)
            self.segments.copies = self._copies

    def _zero_grad(self) -> None:
        for parameter in self._built.parameters.values():
            parameter.grad = None
        if self._copies is not None:
            self._copies.zero_grad()

    def _backward(self, placed: Placed) -> None:
        self._zero_grad()
        super()._backward(placed)
        self.fused.join()

    def _forward_and_backward(self, placed: Placed, weight: Tensor | float = 1.0) -> None:
        super()._forward_and_backward(placed, weight)
        if self._micro_batches > 1:  # the next pass adds to gradients of other streams
            self.fused.join()

    def forward_backward(self, placed: Placed) -> None:
        """Queue a replay of both passes, as `train_step` does of a step."""
        self.train_step(placed)

    def infer(self, placed: Placed) -> Tensor:
        """See `SupportsInference`. On a GPU the pass is one CUDA graph."""
        if self._captured_scores is None:
            return super().infer(placed)
        with torch.no_grad():
            return self._captured_scores(*placed[:-1])

    def _scores(self, *inputs: Tensor) -> Tensor:
        scores: Tensor = self._built.evaluation(*inputs)[0]
        return scores

    def load(self, weights: Mapping[str, Array]) -> None:
        """See `Program`."""
        super().load(weights)
        if self._captured_scores is not None:
            self._captured_scores.reset()

    def train_step(self, placed: Placed) -> None:
        """Queue a replay of the captured step; the first steps, and a batch of another shape, run
        eagerly."""
        if self._why_not:
            self._eager_step(placed)
            return
        if self._graph is None:
            self._done += 1
            if self._done <= STEPS_BEFORE_CAPTURE:
                self._eager_step(self._as_captured(placed))
                return
            self._capture(placed)
        if not _same_shapes(placed, self._static):
            self._eager_step(self._as_captured(placed))
            return
        assert self._graph is not None
        for own, given in zip(self._static, placed, strict=True):
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        self._loss = self._captured_loss

    def _as_captured(self, placed: Placed) -> Placed:
        """Arrays in the types of the captured step's: others would compile segments again."""
        types = (*self._static_types, None)
        return tuple(
            array.to(dtype or array.dtype) for array, dtype in zip(placed, types, strict=True)
        )

    def _eager_step(self, placed: Placed) -> None:
        with self._capture_stream():
            self._launch_step(placed)

    def _launch_step(self, placed: Placed) -> None:
        """Queue the kernels of a step, or of both passes where the work has no update."""
        if isinstance(self._work, ForwardBackward):
            super().forward_backward(placed)
            self.fused.join()
        else:
            super().train_step(placed)

    def _capture_stream(self) -> AbstractContextManager[None]:
        """Queue work on the stream of the capture, in order with the current stream. All work on
        gradients goes there, from the first hook on: PyTorch accumulates a gradient on the stream
        on which its parameter was first used, and in a graph every other stream is a branch."""
        return on_stream(self._stream)

    def _capture(self, placed: Placed) -> None:
        """Capture a step, which does not execute it; the replay does."""
        self._static = tuple(
            torch.empty_like(array, dtype=dtype or array.dtype)
            for array, dtype in zip(placed, (*self._static_types, None), strict=True)
        )
        # None, so that gradients are allocated in the graph's memory pool.
        self._zero_grad()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._launch_step(self._static)
        self._graph, self._captured_loss = graph, self._loss

    def _finish_sync(self, gradients: GradientBuckets) -> None:
        """The last bucket is full at the end of the backward pass, and its transfer would delay
        every rank. In a captured step, where launches are free, all other weights are updated
        meanwhile."""
        sync, (*early, last) = self._sync, gradients.buckets
        if self._why_not or not early or not isinstance(sync, FinishesInOrder):
            super()._finish_sync(gradients)
            return
        sync.finish_but_last()
        gradients.restore_precision(early)
        with without_gradients(self._built.parameters, last.parameters):
            super()._apply()
        sync.finish()
        gradients.restore_precision([last])
        self._updated = tuple(name for bucket in early for name in bucket.parameters)

    def _apply(self) -> None:
        with without_gradients(self._built.parameters, self._updated):
            super()._apply()
        if self._copies is not None and self._optimizer is not None:
            self._copies.update(self._optimizer, self._loss_scale)

    @property
    def _loss_scale(self) -> float:
        return self._scaling.scale() if isinstance(self._scaling, StaticScaling) else 1.0

    def _forward(self, placed: Placed) -> Tensor:
        with self._autocast:
            return self.segments(*placed)

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`. A step is captured again once its rate is constant
        for as many steps as precede a capture."""
        assert self._optimizer is not None, "a training program"
        if any(group["lr"] != rate for group in self._optimizer.param_groups):
            self._rate_changed = True
            self._reset_capture()
        super().set_learning_rate(rate)

    def _start_optimizer(self) -> None:
        super()._start_optimizer()
        for group in self._optimizer.param_groups if self._optimizer else ():
            if "capturable" in group:  # keeps its step count on the device
                group["capturable"] = self._kind == "cuda"
        if self._copies is not None:
            self._copies.refresh()
        self._reset_capture()

    def close(self) -> None:
        """Drop every array and the graph."""
        self._reset_capture()
        self.segments.close()
        self._copies = None
        del self.fused, self.segments, self._captured_scores
        super().close()


def build(request: BuildRequest) -> CapturedProgram:
    """The program for `request`; its third step captures."""
    return CapturedProgram(request)


def capabilities() -> Capabilities:
    """Those of eager PyTorch without inspection of layers, other precisions by layer than FP8,
    synchronized batch normalization, sparse gradients and model parallelism. Kernels are chosen by
    timing, so runs are not deterministic."""
    able = runtime.capabilities()
    return replace(
        able,
        works=able.works - {"first_steps", "infer_load", "infer_precision", "own_step"},
        layer_precisions={k: own & {"bf16", "fp8"} for k, own in able.layer_precisions.items()},
        sync_features=REPLICA_SYNC_FEATURES,
        batch_norms=frozenset({"device"}),
        deterministic=False,
        checkpoints_activations=False,
        sparse_gradients=False,
    )


def _retried(run: Callable[[], Any]) -> Any:
    """Call `run`, which compiles; without a damaged library of the compiler's cache if needed."""
    return run_with_cache_repair(run, cache_in_use)


def _same_shapes(one: Placed, other: Placed) -> bool:
    return all(a.shape == b.shape for a, b in zip(one, other, strict=True))
