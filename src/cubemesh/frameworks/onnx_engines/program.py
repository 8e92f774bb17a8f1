"""Program of an inference engine: the network as an ONNX model that the engine optimizes.

The model has the batch size of the run, so that the engine may choose its kernels for it; `load`
makes it. Every pass waits for its scores.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

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
from cubemesh.onnx.export import import_onnx, model
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling

Placed = tuple[Array, ...]
"""The network's inputs, then labels."""


class OnnxProgram:
    """A network in evaluation mode in one engine; see `Program` and `SupportsInference`."""

    buckets: Sequence[Bucket] = ()

    def __init__(self, request: BuildRequest) -> None:
        try:
            import_onnx()
        except UsageError as error:
            raise NotInstalled(str(error)) from error
        self.device = request.device
        self.request = request
        self._weights: dict[str, Array] = {}

    @abstractmethod
    def start(self, serialized: bytes, names: Sequence[str]) -> None:
        """Make the engine ready for a model whose inputs are `names`."""

    @abstractmethod
    def infer(self, placed: Placed) -> Any:
        """See `SupportsInference`."""

    @abstractmethod
    def fetch(self, scores: Any) -> Array:
        """See `SupportsInference`."""

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

    forward = train_step

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
        self.start(made.SerializeToString(), [i.name for i in network.inputs])

    def state(self) -> dict[str, Array]:
        """The weights as loaded."""
        return {name: array.copy() for name, array in self._weights.items()}

    def peak_memory_bytes(self) -> int | None:
        """None: the engine does not tell."""
        return None

    clock = staticmethod(monotonic_s)

    def close(self) -> None:
        """Drop the weights."""
        self._weights.clear()


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """Unsupported: an engine offers no single operation."""
    raise Unsupported(
        f"{program.framework} runs whole models and no single operation. Set framework=pytorch."
    )
