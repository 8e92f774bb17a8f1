"""The weight server's copy of a program's weights: flat arrays with an optimizer of their own.

    worker's program   ── gradients, by bucket ──▶ incoming ─ apply ─▶ server's weights
                       ◀── Replica.received ─────  outgoing ◀─ read ──┘

All flat arrays are divided like the gradient buckets, so that few transfers are needed. On a GPU
the server has a stream of its own: its updates and transfers run concurrently with the steps of the
program on the same GPU, in order, whichever thread queued them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn, optim

from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.pytorch.distributed.buckets import places
from cubemesh.frameworks.pytorch.runtime import on_stream

MakeOptimizer = Callable[[list[nn.Parameter]], optim.Optimizer | None]


class TorchReplica:
    """See `Replica`. `own_optimizer` has the current learning rate; `make_optimizer` creates
    another like it."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        buckets: Sequence[Bucket],
        own_optimizer: optim.Optimizer,
        make_optimizer: MakeOptimizer,
    ) -> None:
        self.server_weights = partial(
            TorchServerWeights, parameters, buckets, own_optimizer, make_optimizer
        )
        self.received: Sequence[Tensor] = [torch.empty_like(b.gradients) for b in buckets]
        received = _by_name(self.received, buckets, parameters)
        self._received = [received[name] for name in parameters]
        self._weights = [parameter.data for parameter in parameters.values()]

    def load_received(self) -> None:
        """See `Replica`."""
        torch._foreach_copy_(self._weights, self._received)


class TorchServerWeights:
    """See `ServerWeights`."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        buckets: Sequence[Bucket],
        own_optimizer: optim.Optimizer,
        make_optimizer: MakeOptimizer,
    ) -> None:
        def like_buckets() -> Sequence[Tensor]:
            return [torch.empty_like(bucket.gradients) for bucket in buckets]

        self._weights, self._gradients = like_buckets(), like_buckets()
        self.incoming, self.outgoing = like_buckets(), like_buckets()
        weights = _by_name(self._weights, buckets, parameters)
        gradients = _by_name(self._gradients, buckets, parameters)
        server_weights = []
        for name, parameter in parameters.items():
            server_weights.append(nn.Parameter(weights[name].copy_(parameter.data)))
            server_weights[-1].grad = gradients[name]
        self._own_optimizer = own_optimizer
        optimizer = make_optimizer(server_weights)
        assert optimizer is not None, "only a program that trains has gradients to apply"
        self._optimizer = optimizer
        self._device = server_weights[0].device
        cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if cuda else None  # type: ignore[no-untyped-call]

    @contextmanager
    def server_stream(self) -> Iterator[None]:
        """See `ServerWeights`."""
        if self._stream is None:
            yield
            return
        torch.cuda.set_device(self._device)  # per thread
        with torch.cuda.stream(self._stream):
            yield

    def apply(self, gradients: Sequence[Tensor], rate_factor: float) -> None:
        """See `ServerWeights`."""
        for group, own in zip(
            self._optimizer.param_groups, self._own_optimizer.param_groups, strict=True
        ):
            group["lr"] = own["lr"] * rate_factor
        with on_stream(self._stream):
            torch._foreach_copy_(list(self._gradients), list(gradients))
            self._optimizer.step()

    def read(self, into: Sequence[Tensor]) -> None:
        """See `ServerWeights`."""
        with on_stream(self._stream):
            torch._foreach_copy_(list(into), list(self._weights))


def _by_name(
    flats: Sequence[Tensor], buckets: Sequence[Bucket], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The arrays in flat ones that are divided like the buckets, by name."""
    found: dict[str, Tensor] = {}
    for flat, bucket in zip(flats, buckets, strict=True):
        found |= places(flat, {name: like[name] for name in bucket.parameters})
    return found
