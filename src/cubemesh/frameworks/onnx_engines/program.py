"""Program of an inference engine: the network as an ONNX model that the engine optimizes.

The model has the batch size of the run, so that the engine may choose its kernels for it; `load`
makes it. Every pass waits for its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cubemesh.batches import Array, Batch
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    CeilingProgram,
    NotInstalled,
    Unsupported,
    monotonic_s,
)
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.onnx.engines import Session
from cubemesh.onnx.export import model
from cubemesh.onnx.library import import_onnx
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling

Placed = tuple[Array, ...]
"""The network's inputs, then labels."""


class OnnxProgram:
    """A network in evaluation mode in one engine; see `Program` and `SupportsInference`."""

    buckets: Sequence[Bucket] = ()

    def __init__(self, request: BuildRequest, open_session: Callable[..., Session]) -> None:
        try:
            import_onnx()
        except UsageError as error:
            raise NotInstalled(str(error)) from error
        self.device = request.device
        self.request = request
        self._open = open_session
        self._session: Session | None = None
        self._names = [i.name for i in request.network.inputs]
        self._weights: dict[str, Array] = {}

    def infer(self, placed: Placed) -> Array:
        """See `SupportsInference`."""
        assert self._session is not None
        return self._session.run(dict(zip(self._names, placed, strict=False)))[0]

    def fetch(self, scores: Array) -> Array:
        """A copy: the next pass may reuse the array."""
        return np.array(scores)

    def place(self, batch: Batch) -> Placed:
        """Copies in the types of the model."""
        arrays = (*batch.inputs, batch.labels)
        return tuple(
            np.array(a, np.float32 if np.issubdtype(a.dtype, np.floating) else np.int64, order="C")
            for a in arrays
        )

    def evaluate(self, placed: Placed) -> Array:
        """See `Program`."""
        return self.fetch(self.infer(placed))

    def train_step(self, placed: Placed) -> None:
        """UsageError: an engine does not train."""
        raise UsageError("an inference engine does not train.")

    forward = forward_backward = train_step

    def loss(self) -> float:
        """NaN: nothing is trained."""
        return float("nan")

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Make the model with these weights and the engine for it."""
        network = self.request.network
        check_weights(weights, network)
        self._weights = {name: np.array(array) for name, array in weights.items()}
        made = model(network, self._weights, self.request.work.batch_per_device)
        self._session = self._open(
            made.SerializeToString(),
            threads=self.request.threads,
            precision=self.request.program.precision,
            device=self.device,
        )

    def state(self) -> dict[str, Array]:
        """The weights as loaded."""
        return {name: array.copy() for name, array in self._weights.items()}

    def peak_memory_bytes(self) -> int | None:
        """None: the engine does not tell."""
        return None

    clock = staticmethod(monotonic_s)

    def close(self) -> None:
        """Drop the model and the weights."""
        self._session = None
        self._weights.clear()


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """Unsupported: an engine offers no single operation."""
    raise Unsupported(
        f"{program.framework} runs whole models and no single operation. Set framework=pytorch."
    )
