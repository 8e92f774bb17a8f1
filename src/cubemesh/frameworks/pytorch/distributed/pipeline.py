"""Pipelined training step: micro-batches pass through the stages of a network, one on each rank.

    stage 0   F0 ─▶ F1 ─▶ ┄┄ B0 ─▶ F2 ─▶ B1 …      between two passes one batch of transfers:
    stage 1   ┄┄ F0 ◀─▶ B0 ◀─▶ F1 ◀─▶ B1 …         what the last made, what the next needs

The strategy says in which order a stage makes its passes (parallel/pipeline.py). A result and what
the next pass reads are transferred together, so that two stages that send to each other do not wait
for one another, over gloo and NCCL. A send is waited for at the end of the step only. The loss of a
micro-batch is its share of the mean over all samples, so that gradients of micro-batches add up to
the gradient of the whole. With several replicas of the pipeline, the ranks of a stage then average
their gradients, as one flat array of about 25 MiB after another.

Waits are read on the host on a CPU, and by events around them on a GPU, which are read when they
have passed: nothing is synchronized for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cubemesh.batches import PADDING, Array
from cubemesh.frameworks.contract.gradient_sync import (
    BUCKET_BYTES,
    ModelParallelSync,
    PipelineSync,
    StepTimes,
)
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch.distributed.buckets import packed
from cubemesh.frameworks.pytorch.distributed.model_parallel import ModelParallelProgram, flat
from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import SyncDropout
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.profiling.activation_hooks import InspectCallback
from cubemesh.frameworks.pytorch.program import detection_loss
from cubemesh.networks.graph import Head
from cubemesh.networks.layers import BatchNorm, Dropout

Wait = Literal["stage", "gradients"]
_Expected = tuple[tuple[int, ...], int]
"""(shape, sending stage) of an array to receive."""


class PipelineProgram(ModelParallelProgram):
    """The stage of this rank; see `Program`. Every rank makes the same calls, those of a pipeline
    with the same batches."""

    def __init__(self, request: BuildRequest, sync: ModelParallelSync) -> None:
        assert isinstance(sync, PipelineSync)
        normalizes = any(isinstance(node.layer, BatchNorm) for node in request.network.nodes)
        if request.program.batch_norm == "global" and normalizes:
            raise Unsupported(
                f"batch_norm=global: with sync={request.sync.name} {request.network.name} "
                "normalizes over one micro-batch at a time. Leave batch_norm out, or set "
                "sync=all-reduce."
            )
        self._pipeline = sync
        super().__init__(request, sync)
        self._replicas = sync.group.size // self._stages
        self._groups: list[dist.ProcessGroup] = []
        self._own_pipeline: dist.ProcessGroup | None = None
        self._own_stage: dist.ProcessGroup | None = None
        if self._replicas > 1:
            self._make_groups()
        self._sends: list[tuple[dist.Work, list[Tensor]]] = []
        cuda = self._kind == "cuda"
        self._clock: _HostClock | _EventClock = _EventClock() if cuda else _HostClock()
        self._dropouts = {
            name: layer
            for name, layer in self._built.layers.items()
            if isinstance(layer, SyncDropout)
        }
        self._draws = bool(request.program.deterministic)

    def _make_groups(self) -> None:
        """A process group for each pipeline and for each stage; every rank makes all."""
        for replica in range(self._replicas):
            first = replica * self._stages
            group = dist.new_group(list(range(first, first + self._stages)))
            self._groups.append(group)
            if replica == self._replica:
                self._own_pipeline = group
        for stage in range(self._stages):
            ranks = [replica * self._stages + stage for replica in range(self._replicas)]
            group = dist.new_group(ranks)
            self._groups.append(group)
            if stage == self._stage:
                self._own_stage = group

    def train_step(self, placed: Placed) -> None:
        """Queue this stage's passes of every micro-batch, and the update."""
        self._passes(placed)
        self._sync.update(self._apply, self._weights_on_device)
        self._clock.end()

    def inspected_step(self, placed: Placed, inspect: InspectCallback) -> None:
        """See `SupportsStepInspection`. Gradients are those of the whole network, of this
        pipeline's samples and of all; outputs of layers are not inspected."""
        self._passes(placed, inspect)
        for name, gradient in self._whole_arrays(self._gradients_by_name()).items():
            inspect("gradient", name, gradient)
        self._sync.update(self._apply, self._weights_on_device)
        self._clock.end()

    def parameters(self) -> dict[str, Array]:
        """Of the whole network, on every rank; all ranks must call it."""
        arrays = self.state()
        return {name: arrays[name] for name in self._whole.parameters}

    def close(self) -> None:
        """Leave the groups, too."""
        self._clock.read(self._pipeline.times, wait=True)
        for group in self._groups:
            dist.destroy_process_group(group)
        super().close()

    def _passes(self, placed: Placed, inspect: InspectCallback | None = None) -> None:
        """Both passes of every micro-batch; then the gradients are complete."""
        optimizer = self._optimizer
        assert optimizer is not None, "built to train"
        self._clock.read(self._pipeline.times)
        batches = self._split(placed)
        self._clock.start(len(batches))
        optimizer.zero_grad(set_to_none=True)
        self._draw_dropout(len(placed[0]))
        count = self._label_count(placed)
        actions = self._pipeline.actions(self._stage, len(batches))
        inputs: dict[int, Placed] = {}
        results: dict[int, Tensor] = {}
        losses: list[Tensor] = []
        arrived = self._transfer((), self._needs(actions[0], batches))
        for number, (kind, n) in enumerate(actions):
            if kind == "forward":
                inputs[n] = self._given(batches[n], arrived)
                self._use_dropout(n, batches)
                results[n] = self._forward_one(inputs[n], batches[n], count)
                sent, to = results[n].detach(), self._stage + 1
                if self._stage == self._last:
                    losses.append(sent)
            else:
                given, result = inputs.pop(n), results.pop(n)
                result.backward(None if arrived is None else arrived.to(result.dtype))  # type: ignore[no-untyped-call]
                to = self._stage - 1
                sent = given[0].grad if to >= 0 else None  # type: ignore[assignment]
            ends = not 0 <= to <= self._last
            needs = None
            if number + 1 < len(actions):
                needs = self._needs(actions[number + 1], batches)
            arrived = self._transfer(() if ends or sent is None else ((sent, to),), needs)
        self._finish_sends()
        for name, gradient in (self._own_gradients() if inspect else {}).items():
            assert inspect is not None
            inspect("own gradient", name, gradient)
        self._average_gradients()
        with self._clock.waiting("stage"):
            self._loss = self._from_last_rank(self._sum(losses))

    def _forward(self, placed: Placed) -> Tensor:
        """The forward passes of all micro-batches; the loss."""
        batches = self._split(placed)
        self._draw_dropout(len(placed[0]))
        count = self._label_count(placed)
        losses: list[Tensor] = []
        for n, batch in enumerate(batches):
            arrived = self._transfer((), self._needs(("forward", n), batches))
            self._use_dropout(n, batches)
            result = self._forward_one(self._given(batch, arrived), batch, count)
            if self._stage == self._last:
                losses.append(result)
            else:
                self._transfer(((result, self._stage + 1),), None)
        self._finish_sends()
        return self._from_last_rank(self._sum(losses))

    def _forward_one(self, given: Placed, batch: Placed, count: Tensor | None) -> Tensor:
        """The stage's result of a micro-batch; of the last stage its share of the mean loss."""
        with self._autocast:
            values = self.module(*given)
            if count is None:
                (value,) = values
                result: Tensor = value
            else:
                result = _loss_share(self._heads, values, batch[-1], count)
        return result

    def _split(self, placed: Placed) -> list[Placed]:
        """The micro-batches of a batch."""
        parts = self._pipeline.micro_batches(len(placed[0]))
        return list(zip(*(torch.tensor_split(array, parts) for array in placed), strict=True))

    def _label_count(self, placed: Placed) -> Tensor | None:
        """Labels that count in the batch's mean loss, or its images where each has a grid of them;
        None but on the last stage."""
        if self._stage != self._last:
            return None
        labels = placed[-1]
        counted = labels if labels.dim() < 3 else labels.new_zeros(len(labels))
        return (counted != PADDING).sum()

    def _sum(self, losses: Sequence[Tensor]) -> Tensor:
        if not losses:
            return torch.zeros((), dtype=self._dtype, device=self.device)
        return torch.stack(list(losses)).sum()

    def _needs(self, action: tuple[str, int], batches: Sequence[Placed]) -> _Expected | None:
        """What a pass receives; None for the first stage's forward and the last's backward
        pass."""
        kind, n = action
        source = self._stage - 1 if kind == "forward" else self._stage + 1
        if not 0 <= source <= self._last:
            return None
        part = self._parts[self._stage if kind == "forward" else source]
        return (len(batches[n][0]), *part.inputs[0].shape), source

    def _given(self, batch: Placed, arrived: Tensor | None) -> Placed:
        """The inputs of the stage's forward pass."""
        if arrived is None:
            return batch[1 : 1 + len(self._whole.inputs)]
        return (arrived.requires_grad_(torch.is_grad_enabled()),)

    def _transfer(
        self, sent: Sequence[tuple[Tensor, int]], expected: _Expected | None
    ) -> Tensor | None:
        """Start sending arrays to stages, and wait for the expected one."""
        operations, buffers, received = [], [], None
        for value, stage in sent:
            value = value.detach().to(self._dtype)
            value = flat(value.contiguous(memory_format=self._layout(value.dim())))
            buffers.append(value)
            operations.append(dist.P2POp(dist.isend, value, self._rank_of(stage)))
        if expected is not None:
            shape, source = expected
            received = self._empty(shape)
            operations.append(dist.P2POp(dist.irecv, flat(received), self._rank_of(source)))
        if not operations:
            return None
        works = dist.batch_isend_irecv(operations)
        waits: list[dist.Work] = []
        if received is not None:  # NCCL has one work for all
            waits = works[len(buffers) :] if len(works) == len(operations) else works
            works = works[: len(works) - len(waits)]
        self._sends += [(work, buffers) for work in works]
        with self._clock.waiting("stage"):
            for work in waits:
                work.wait()
        return received

    def _finish_sends(self) -> None:
        with self._clock.waiting("stage"):
            for work, _ in self._sends:
                work.wait()
        self._sends.clear()

    def _average_gradients(self) -> None:
        """The mean over the replicas of this stage, in place."""
        if self._own_stage is None:
            return
        with self._clock.waiting("gradients"):
            parameters = self._built.parameters
            for names in packed(parameters, BUCKET_BYTES):
                gradients = [parameters[name].grad for name in names]
                present = [gradient for gradient in gradients if gradient is not None]
                together = torch.cat([gradient.flatten() for gradient in present])
                dist.all_reduce(together, group=self._own_stage)
                together.div_(self._replicas)
                rows = torch.split(together, [gradient.numel() for gradient in present])
                for gradient, row in zip(present, rows, strict=True):
                    gradient.copy_(row.view(gradient.shape))

    def _own_gradients(self) -> dict[str, Array]:
        """The gradients of the whole network, of this pipeline's samples."""
        return self._whole_arrays(self._gradients_by_name())

    def _gradients_by_name(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name, parameter in self._built.parameters.items():
            gradient = parameter.grad
            assert gradient is not None
            found[name] = gradient.to("cpu", dtype=self._dtype).numpy()
        return found

    def _whole_arrays(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """The parameters' arrays of all stages, from each stage's own."""
        found: dict[str, Array] = {}
        for stage, part in enumerate(self._parts):
            for name, spec in part.parameters.items():
                received = torch.empty(spec.shape, dtype=self._dtype, device=self.device)
                if stage == self._stage:
                    received.copy_(torch.from_numpy(own[name]))
                self._broadcast(received, stage)
                found[name] = received.cpu().numpy()
        return {name: found[name] for name in self._whole.parameters}

    def _broadcast(self, value: Tensor, stage: int) -> None:
        dist.broadcast(value, self._rank_of(stage), group=self._own_pipeline)

    def _draw_dropout(self, samples: int) -> None:
        """Draw the numbers of every dropout layer for the global batch in the order of one device,
        with deterministic=true."""
        if not self._draws:
            return
        rows = slice(self._replica * samples, (self._replica + 1) * samples)
        self._drawn: dict[str, Tensor] = {}
        for node in self._whole.needed():
            layer = node.layer
            if not isinstance(layer, Dropout) or layer.rate == 0.0:
                continue
            of = [1] * len(node.shape) if layer.per_sample else list(node.shape)
            drawn = torch.rand((samples * self._replicas, *of), device=self.device)
            if node.name in self._dropouts:
                self._drawn[node.name] = drawn[rows]

    def _use_dropout(self, n: int, batches: Sequence[Placed]) -> None:
        """Let the dropout layers use their numbers of a micro-batch."""
        if not self._draws:
            return
        first = sum(len(batch[0]) for batch in batches[:n])
        for name, drawn in self._drawn.items():
            self._dropouts[name].drawn = drawn[first : first + len(batches[n][0])]


def _loss_share(
    heads: Sequence[Head], scores: Sequence[Tensor], labels: Tensor, count: Tensor
) -> Tensor:
    """A micro-batch's share of `total_loss` of a batch with `count` labels, or images of a grid of
    cells. No head is a penalty: a network with one cannot be cut into stages."""
    if heads[0].loss == "detection":
        return detection_loss(scores[0], labels) * len(labels) / count
    labels = labels.flatten()
    losses = [
        head.weight
        * F.cross_entropy(values.flatten(0, -2), labels, ignore_index=PADDING, reduction="sum")
        for head, values in zip(heads, scores, strict=True)
    ]
    return torch.stack(losses).sum() / count


class _HostClock:
    """Times of steps on a CPU, which computes and waits on the host."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, dict[Wait, float], int]] = []
        self._began, self._parts = 0.0, 0
        self._waits: dict[Wait, float] = {}

    def start(self, micro_batches: int) -> None:
        """A step begins."""
        self._began, self._parts = time.perf_counter(), micro_batches
        self._waits = {"stage": 0.0, "gradients": 0.0}

    @contextmanager
    def waiting(self, what: Wait) -> Iterator[None]:
        """The block waits for another rank."""
        began = time.perf_counter()
        yield
        if what in self._waits:
            self._waits[what] += time.perf_counter() - began

    def end(self) -> None:
        """The step has ended."""
        self._steps.append((time.perf_counter() - self._began, self._waits, self._parts))
        self._waits = {}

    def read(self, times: StepTimes, *, wait: bool = False) -> None:
        """Pass on what was measured."""
        for step_s, waits, parts in self._steps:
            times.add(step_s, waits["stage"], waits["gradients"], parts)
        self._steps.clear()


_Mark = torch.cuda.Event


class _EventClock:
    """Times of steps on a GPU, by events in its stream."""

    def __init__(self) -> None:
        self._steps: deque[tuple[_Mark, _Mark, list[tuple[Wait, _Mark, _Mark]], int]] = deque()
        self._began: _Mark | None = None
        self._waits: list[tuple[Wait, _Mark, _Mark]] = []
        self._parts = 0

    def start(self, micro_batches: int) -> None:
        """A step begins."""
        self._began, self._parts, self._waits = _mark(), micro_batches, []

    @contextmanager
    def waiting(self, what: Wait) -> Iterator[None]:
        """What the block queues waits for another rank."""
        began = _mark()
        yield
        if self._began is not None:
            self._waits.append((what, began, _mark()))

    def end(self) -> None:
        """The step has ended."""
        assert self._began is not None
        self._steps.append((self._began, _mark(), self._waits, self._parts))
        self._began = None

    def read(self, times: StepTimes, *, wait: bool = False) -> None:
        """Pass on the steps that are done; with `wait` all."""
        while self._steps and (wait or self._steps[0][1].query()):  # type: ignore[no-untyped-call]
            began, ended, waits, parts = self._steps.popleft()
            ended.synchronize()
            found: dict[Wait, float] = {"stage": 0.0, "gradients": 0.0}
            for what, first, last in waits:
                found[what] += first.elapsed_time(last) / 1e3
            step_s = began.elapsed_time(ended) / 1e3
            times.add(step_s, found["stage"], found["gradients"], parts)


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
