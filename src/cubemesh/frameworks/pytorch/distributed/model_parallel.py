"""Model-parallel training step: each rank holds a part of the network; activations go forward,
gradients back.

    rank 0    forward ─ send value                ┄┄┄                receive gradient ─ backward …
    last                receive value ─ forward, loss, backward ─ send gradient ─ update

Neighbours send one array in each direction, in the dtype of the weights: a 16-bit activation of
autocast is cast to it, without loss. At the end of a step the last rank broadcasts the loss, in
evaluation the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cubemesh.batches import Array, Batch
from cubemesh.frameworks.contract.gradient_sync import ModelParallelSync
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.contract.translation import BeamSearch
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.precision import state_dict
from cubemesh.frameworks.pytorch.program import PyTorchProgram, total_loss


class ModelParallelProgram(PyTorchProgram):
    """The part of this rank; see `Program`. Every rank makes the same calls with the same
    batches."""

    def __init__(self, request: BuildRequest, sync: ModelParallelSync) -> None:
        settings = request.program
        if settings.precision == "fp16" or settings.precision_of:
            raise Unsupported(
                f"sync={request.sync.name} supports neither loss scaling nor precision by layer. "
                "Set precision=bf16 or fp32, and leave precision_of out."
            )
        if settings.decode_location == "device":
            raise Unsupported(
                f"sync={request.sync.name} does not support decoding on the device. Set "
                "decode_location=host."
            )
        self._parts = sync.parts(request.network)
        self._whole = request.network
        self._group, self._p2p = sync.group, sync.group.point_to_point()
        self._stages = len(self._parts)
        self._replica, self._stage = divmod(sync.group.rank, self._stages)
        self._last = self._stages - 1
        super().__init__(replace(request, network=self._parts[self._stage]))

    def place(self, batch: Batch) -> Placed:
        """The first rank gets the network's inputs, the last the labels. Each also gets an empty
        array whose length is the batch size."""
        count = torch.empty((batch.samples, 0), device=self.device)
        inputs = map(self._to_device.array, batch.inputs) if self._stage == 0 else ()
        labels = (self._to_device.array(batch.labels),) if self._stage == self._last else ()
        return (count, *inputs, *labels)

    def train_step(self, placed: Placed) -> None:
        """Queue the rank's part of a step."""
        optimizer = self._optimizer
        assert optimizer is not None, "built to train"
        optimizer.zero_grad(set_to_none=True)
        given = self._inputs(placed)
        with self._autocast:
            values = self.module(*given)
        if self._stage == self._last:
            with self._autocast:
                loss = total_loss(self._heads, values, placed[-1])
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss = torch.zeros((), dtype=self._dtype, device=self.device)
            (value,) = values
            self._send(value.detach(), self._stage + 1)
            value.backward(self._recv(value.shape, self._stage + 1).to(value.dtype))
        if self._stage > 0:
            gradient = given[0].grad
            assert gradient is not None
            self._send(gradient, self._stage - 1)
        self._sync.update(self._apply, self._weights_on_device)
        self._loss = self._from_last_rank(loss.detach())

    def _forward(self, placed: Placed) -> Tensor:
        with self._autocast:
            values = self.module(*self._inputs(placed))
            if self._stage == self._last:
                return self._from_last_rank(total_loss(self._heads, values, placed[-1]))
        self._send(values[0], self._stage + 1)
        return self._from_last_rank(torch.zeros((), dtype=self._dtype, device=self.device))

    def evaluate(self, placed: Placed) -> Array:
        """Scores, on every rank."""
        self.module.eval()
        head = self._parts[-1].shapes[self._whole.output]
        with torch.no_grad(), self._autocast:
            (values,) = self._built.evaluation(*self._inputs(placed))
        self.module.train()
        scores = torch.empty((len(placed[0]), *head), dtype=self._dtype, device=self.device)
        if self._stage == self._last:
            scores.copy_(values)
        else:
            self._send(values, self._stage + 1)
        array: Array = self._from_last_rank(scores).cpu().numpy()
        return array

    def translate(self, sources: Array, search: BeamSearch) -> list[list[int]]:
        """Unsupported: a token would pass all devices before the next one begins."""
        raise Unsupported(
            "a network that is divided over devices does not translate. Leave beam_width out, or "
            "set another sync."
        )

    def first_nonfinite(self, placed: Placed) -> str:
        """Of weights only: a forward pass needs the other ranks."""
        return state_dict.first_nonfinite(self._built.layers)

    def _inputs(self, placed: Placed) -> Placed:
        """The inputs of the rank's part: its batch, or the activations of the previous rank."""
        if self._stage == 0:
            return placed[1 : 1 + len(self._whole.inputs)]
        shape = self._parts[self._stage].inputs[0].shape
        value = self._recv((len(placed[0]), *shape), self._stage - 1)
        return (value.requires_grad_(torch.is_grad_enabled()),)

    def _rank_of(self, stage: int) -> int:
        """The rank of a stage of this rank's replica of the network."""
        return self._replica * self._stages + stage

    def _send(self, value: Tensor, to: int) -> None:
        contiguous = value.to(self._dtype).contiguous(memory_format=self._layout(value.dim()))
        self._p2p.send([flat(contiguous)], self._rank_of(to))

    def _recv(self, shape: tuple[int, ...], source: int) -> Tensor:
        value = self._empty(shape)
        self._p2p.recv([flat(value)], self._rank_of(source))
        return value

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        layout = self._layout(len(shape))
        return torch.empty(shape, dtype=self._dtype, device=self.device, memory_format=layout)

    def _layout(self, dimensions: int) -> torch.memory_format:
        return self._memory_format if dimensions == 4 else torch.contiguous_format

    def _from_last_rank(self, value: Tensor) -> Tensor:
        """Broadcast the last rank's value."""
        value = value.to(self._dtype)
        self._broadcast(value, self._last)
        return value

    def _broadcast(self, value: Tensor, stage: int) -> None:
        """Replace `value` by that of a stage."""
        self._group.broadcast([value], self._rank_of(stage)).wait()

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load the rank's weights from those of the whole network."""
        check_weights(weights, self._whole)
        own = self._parts[self._stage]
        super().load({name: weights[name] for name in (*own.parameters, *own.state)})

    def state(self) -> dict[str, Array]:
        """Every array of the whole network, on every rank; all ranks must call it."""
        found: dict[str, Array] = {}
        for stage, part in enumerate(self._parts):
            arrays = {
                name: spec.shape for name, spec in (*part.parameters.items(), *part.state.items())
            }
            own = super().state() if stage == self._stage else {}
            for name, shape in arrays.items():
                received = torch.empty(shape, dtype=self._dtype, device=self.device)
                if name in own:
                    received.copy_(torch.from_numpy(own[name]))
                self._broadcast(received, stage)
                found[name] = received.cpu().numpy()
        return {name: found[name] for name in (*self._whole.parameters, *self._whole.state)}


def flat(value: Tensor) -> Tensor:
    """A dense array as a flat view in memory order."""
    return value.as_strided((value.numel(),), (1,), value.storage_offset())
