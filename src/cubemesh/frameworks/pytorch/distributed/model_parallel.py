"""What is a training step where each rank holds a part of the network? Values forward, gradients
back.

    rank 0    forward ─ send value                ┄┄┄                receive gradient ─ backward …
    last                receive value ─ forward, loss, backward ─ send gradient ─ update

Neighbours pass one array each way, in the type of the weights: a narrower one that autocast made is
widened for the way, which loses nothing. At the end of a step every rank is sent the loss, and in
evaluation the scores, so that each can say them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cubemesh.batches import Array, Batch
from cubemesh.frameworks.api.gradient_sync import ModelParallelSync
from cubemesh.frameworks.api.program import BuildRequest, Unsupported
from cubemesh.frameworks.api.validation import check_weights
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.precision import state_dict as snapshots
from cubemesh.frameworks.pytorch.program import PyTorchProgram, total_loss


class SplitProgram(PyTorchProgram):
    """The part of this rank; see `Program` in frameworks/base. Every rank makes the same calls with
    the same batches."""

    def __init__(self, request: BuildRequest, sync: ModelParallelSync) -> None:
        settings = request.program
        if settings.precision == "fp16" or settings.precision_of:
            raise Unsupported(
                "sync=model-parallel scales no loss and computes every layer in one precision. "
                "Set precision=bf16 or fp32, and leave precision_of out."
            )
        if settings.decode_location == "device":
            raise Unsupported(
                "sync=model-parallel feeds images to its first device alone, which does not "
                "decode them. Set decode_location=host."
            )
        self._parts = sync.parts(request.network)
        self._whole = request.network
        self._group, self._p2p = sync.group, sync.group.point_to_point()
        self._rank, self._last = sync.group.rank, sync.group.size - 1
        super().__init__(replace(request, network=self._parts[self._rank]))

    def place(self, batch: Batch) -> Placed:
        """The first rank gets what the network is fed, the last the labels. Each also gets an array
        of no values that says how many samples there are."""
        count = torch.empty((batch.samples, 0), device=self.device)
        inputs = map(self._placer.array, batch.inputs) if self._rank == 0 else ()
        labels = (self._placer.array(batch.labels),) if self._rank == self._last else ()
        return (count, *inputs, *labels)

    def train_step(self, placed: Placed) -> None:
        """Queue the rank's share of a step."""
        optimizer = self._optimizer
        assert optimizer is not None, "built to train"
        optimizer.zero_grad(set_to_none=True)
        given = self._given(placed)
        with self._autocast:
            values = self.module(*given)
        if self._rank == self._last:
            with self._autocast:
                loss = total_loss(self._weights, values, placed[-1])
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss = torch.zeros((), dtype=self._dtype, device=self.device)
            (value,) = values
            self._send(value.detach(), self._rank + 1)
            value.backward(self._received(value.shape, self._rank + 1).to(value.dtype))
        if self._rank > 0:
            gradient = given[0].grad
            assert gradient is not None
            self._send(gradient, self._rank - 1)
        self._exchange.update(self._apply, self._weights_on_device)
        self._loss = self._told(loss.detach())

    def _forward(self, placed: Placed) -> Tensor:
        with self._autocast:
            values = self.module(*self._given(placed))
            if self._rank == self._last:
                return self._told(total_loss(self._weights, values, placed[-1]))
        self._send(values[0], self._rank + 1)
        return self._told(torch.zeros((), dtype=self._dtype, device=self.device))

    def evaluate(self, placed: Placed) -> Array:
        """Scores, on every rank."""
        self.module.eval()
        head = self._parts[-1].shape(self._whole.output)
        with torch.no_grad(), self._autocast:
            (values,) = self._built.evaluation(*self._given(placed))
        self.module.train()
        scores = torch.empty((len(placed[0]), *head), dtype=self._dtype, device=self.device)
        if self._rank == self._last:
            scores.copy_(values)
        else:
            self._send(values, self._rank + 1)
        array: Array = self._told(scores).cpu().numpy()
        return array

    def first_nonfinite(self, placed: Placed) -> str:
        """As far as weights tell: a forward pass would need the other ranks."""
        return snapshots.first_nonfinite(self._built.layers)

    def _given(self, placed: Placed) -> Placed:
        """What the rank's part is fed: its own batch, or what the rank before it sends."""
        if self._rank == 0:
            return placed[1 : 1 + len(self._whole.inputs)]
        shape = self._parts[self._rank].inputs[0].shape
        value = self._received((len(placed[0]), *shape), self._rank - 1)
        return (value.requires_grad_(torch.is_grad_enabled()),)

    def _send(self, value: Tensor, to: int) -> None:
        laid = value.to(self._dtype).contiguous(memory_format=self._layout(value.dim()))
        self._p2p.send([_flat(laid)], to)

    def _received(self, shape: tuple[int, ...], source: int) -> Tensor:
        layout = self._layout(len(shape))
        value = torch.empty(shape, dtype=self._dtype, device=self.device, memory_format=layout)
        self._p2p.recv([_flat(value)], source)
        return value

    def _layout(self, dimensions: int) -> torch.memory_format:
        return self._memory_format if dimensions == 4 else torch.contiguous_format

    def _told(self, value: Tensor) -> Tensor:
        """What the last rank has, on every rank."""
        value = value.to(self._dtype)
        self._group.broadcast([value], self._last).wait()
        return value

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take the rank's own of the weights of the whole network."""
        check_weights(weights, self._whole)
        own = self._parts[self._rank]
        super().load({name: weights[name] for name in (*own.parameters, *own.state)})

    def state(self) -> dict[str, Array]:
        """Every array of the whole network, on every rank, which all must ask for."""
        found: dict[str, Array] = {}
        for rank, part in enumerate(self._parts):
            arrays = {
                name: spec.shape for name, spec in (*part.parameters.items(), *part.state.items())
            }
            own = super().state() if rank == self._rank else {}
            for name, shape in arrays.items():
                held = torch.empty(shape, dtype=self._dtype, device=self.device)
                if name in own:
                    held.copy_(torch.from_numpy(own[name]))
                self._group.broadcast([held], rank).wait()
                found[name] = held.cpu().numpy()
        return {name: found[name] for name in (*self._whole.parameters, *self._whole.state)}


def _flat(value: Tensor) -> Tensor:
    """All of a dense array in the order it lies in memory, without a copy."""
    return value.as_strided((value.numel(),), (1,), value.storage_offset())
