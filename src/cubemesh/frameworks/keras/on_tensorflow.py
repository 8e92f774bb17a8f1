"""The framework `keras`: Keras on TensorFlow, on a CPU or a GPU.

Keras traces the step into a `tf.function` at the first batch. Models of a user's own run here
(own.py).
"""

from __future__ import annotations

from typing import Any

from cubemesh.frameworks.keras.backend import select_backend

select_backend("tensorflow")

import tensorflow as tf

from cubemesh.batches import Array, Batch
from cubemesh.frameworks.contract.program import BuildRequest, Capabilities
from cubemesh.frameworks.keras import own
from cubemesh.frameworks.keras.layers import KerasContext
from cubemesh.frameworks.keras.program import KerasProgram, keras_capabilities
from cubemesh.frameworks.tensorflow import runtime
from cubemesh.frameworks.tensorflow.ceiling import build_ceiling
from cubemesh.frameworks.tensorflow.runtime import is_out_of_memory, preload
from cubemesh.networks.graph import Node
from cubemesh.networks.opaque import Opaque

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]


def capabilities() -> Capabilities:
    """What Keras can do here on TensorFlow."""
    return keras_capabilities(runtime.capabilities())


class TensorFlowKerasProgram(KerasProgram):
    """A functional model as graphs of TensorFlow."""

    framework = "keras"

    def __init__(self, request: BuildRequest) -> None:
        super().__init__(request)
        self._pass = tf.function(self._make_pass, autograph=False)
        self._both = tf.function(self._make_both, autograph=False)
        self._scores = tf.function(self._make_scores, autograph=False)

    def _prepare(self, request: BuildRequest) -> None:
        runtime.prepare(request.device, request.threads)
        runtime.reset_peak_memory(request.device)

    def _apply_precision(self) -> None:
        runtime.use_precision(self._precision)

    def _assign(self, variable: Any, array: Array) -> None:
        variable.assign(tf.constant(array))

    def _on_host(self, array: Any) -> Array:
        found: Array = array.numpy()
        return found

    def _more_layers(self) -> frozenset[type]:
        return frozenset({Opaque})

    def _made(self, node: Node, context: KerasContext, *inputs: Any) -> Any:
        if not isinstance(node.layer, Opaque):
            return super()._made(node, context, *inputs)
        assert node.layer.own is not None, "a network made of a description"
        scores, variables = own.apply(node.layer.own, *inputs)
        context.arrays.update(variables)
        return scores

    def place(self, batch: Batch) -> tuple[Any, Any]:
        """See `KerasProgram`; `tf.constant` owns its tensors."""
        images = batch.images.transpose(0, 2, 3, 1).astype(self._dtype, copy=False)
        return tf.constant(images), tf.constant(batch.labels)

    def forward(self, placed: Any) -> None:
        """See `KerasProgram`."""
        self._start()
        self._loss = self._pass(*placed)

    def forward_backward(self, placed: Any) -> None:
        """See `KerasProgram`."""
        self._start()
        self._loss, _ = self._both(*placed)

    def infer(self, placed: Any) -> Any:
        """See `KerasProgram`."""
        self._start()
        return self._scores(placed[0])

    def _make_pass(self, images: Any, labels: Any) -> Any:
        return self._mean_loss(self.model(images, training=True), labels)

    def _make_both(self, images: Any, labels: Any) -> Any:
        """The loss and the gradients, as the step of `fit` computes them."""
        with tf.GradientTape() as tape:
            loss = self._make_pass(images, labels)
        return loss, tape.gradient(loss, self.model.trainable_weights)

    def _make_scores(self, images: Any) -> Any:
        return self._evaluated(images, training=False)

    def synchronize(self) -> None:
        """See `KerasProgram`; on a CPU a pass returns when it is done."""
        runtime.synchronize(self.device)

    def peak_memory_bytes(self) -> int | None:
        """See `Program`; None on a CPU, where TensorFlow does not count."""
        return runtime.peak_memory_bytes(self.device)

    def close(self) -> None:
        """Drop the models, their arrays and every graph."""
        super().close()
        del self._pass, self._both, self._scores


def build(request: BuildRequest) -> TensorFlowKerasProgram:
    """The program for `request`."""
    return TensorFlowKerasProgram(request)
