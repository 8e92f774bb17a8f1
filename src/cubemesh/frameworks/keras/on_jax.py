"""The framework `keras-jax`: Keras on JAX, on a CPU or a GPU.

Keras compiles the step by XLA at the first batch, as it does by default on JAX. Passes without an
update are compiled functions of the variables' values (`stateless_call`).
"""

from __future__ import annotations

from typing import Any

from cubemesh.frameworks.keras.backend import keep_float64, select_backend

select_backend("jax")

import jax
import jax.numpy as jnp
import numpy as np

from cubemesh.batches import Array, Batch
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.jax import runtime
from cubemesh.frameworks.jax.ceiling import build_ceiling
from cubemesh.frameworks.jax.runtime import is_out_of_memory, preload
from cubemesh.frameworks.keras.program import KerasProgram, keras_capabilities

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


def capabilities() -> Capabilities:
    """What Keras can do here on JAX. Initializes the GPU."""
    return keras_capabilities(runtime.capabilities())


class JaxKerasProgram(KerasProgram):
    """A functional model as functions that XLA compiles."""

    framework = "keras-jax"
    compiles = True

    def __init__(self, request: BuildRequest) -> None:
        super().__init__(request)
        self._last_scores: Any = None
        self._turn = jax.jit(self._make_turn)
        self._pass = jax.jit(self._make_pass)
        self._both = jax.jit(jax.value_and_grad(self._make_pass, has_aux=True))
        self._scores = jax.jit(self._make_scores)

    def _prepare(self, request: BuildRequest) -> None:
        (self._device,) = runtime.prepare(request.device, request.threads)

    def _apply_precision(self) -> None:
        """64-bit types are for fp64 only: with them Keras's dropout draws float64."""
        keep_float64(self._precision == "fp64")
        jax.config.update("jax_enable_x64", self._precision == "fp64")
        jax.config.update("jax_default_device", self._device)
        jax.config.update(
            "jax_default_matmul_precision", runtime.NUMERICS[self._precision].precision
        )

    def _on_host(self, array: Any) -> Array:
        return np.asarray(array)

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """See `KerasProgram`. The layout is changed on the device; waits for the transfer, after
        which the batch may be overwritten. The device is the default one, not named: Keras does not
        name it for its variables, and a step compiles again where that differs."""
        self._use_settings()
        labels = batch.labels.astype(np.int32)  # a copy, which a CPU uses in place
        sent = jax.device_put((batch.images, labels))
        placed = self._turn(sent[0]), sent[1]
        jax.block_until_ready(placed)
        return placed

    def _make_turn(self, images: Any) -> Any:
        return jnp.transpose(images.astype(self._dtype), (0, 2, 3, 1))

    def forward(self, placed: Any) -> None:
        """See `KerasProgram`."""
        self._start()
        self._loss, state = self._pass(*self._values(self.model), *placed)
        self._update(state)

    def forward_backward(self, placed: Any) -> None:
        """See `KerasProgram`. XLA would leave out gradients that are not results."""
        self._start()
        (self._loss, state), _ = self._both(*self._values(self.model), *placed)
        self._update(state)

    def infer(self, placed: Any) -> Any:
        """See `KerasProgram`."""
        self._start()
        self._last_scores = self._scores(*self._values(self._evaluated), placed[0])
        return self._last_scores

    def _values(self, model: Any) -> tuple[list[Any], list[Any]]:
        """The arrays of a model's weights, and those of its state and random generators."""
        return (
            [v.value for v in model.trainable_variables],
            [v.value for v in model.non_trainable_variables],
        )

    def _update(self, state: Any) -> None:
        for variable, array in zip(self.model.non_trainable_variables, state, strict=True):
            variable.assign(array)

    def _make_pass(self, weights: Any, state: Any, images: Any, labels: Any) -> Any:
        values, state = self.model.stateless_call(weights, state, images, training=True)
        return self._mean_loss(values, labels), state

    def _make_scores(self, weights: Any, state: Any, images: Any) -> Any:
        scores, _ = self._evaluated.stateless_call(weights, state, images, training=False)
        return scores

    def synchronize(self) -> None:
        """Wait for the last outputs; an error on the device is raised here."""
        jax.block_until_ready((self._values(self.model), self._loss, self._last_scores))

    def peak_memory_bytes(self) -> int | None:
        """Peak bytes of arrays and temporaries since the process began; None on a CPU, where XLA
        does not count."""
        peak: int | None = (self._device.memory_stats() or {}).get("peak_bytes_in_use")
        return peak

    def close(self) -> None:
        """Drop the models, their arrays and every compiled function."""
        super().close()
        self._last_scores = None
        for compiled in (self._turn, self._pass, self._both, self._scores):
            compiled.clear_cache()


def build(request: BuildRequest) -> JaxKerasProgram:
    """The program for `request`."""
    return JaxKerasProgram(request)
