"""A training step in TensorFlow: a `tf.function` of a batch, over variables:

    inputs, labels ──▶ forward, mean loss ──▶ tape's gradients ──▶ update ──▶ loss

It is traced at the first step of a batch size; later calls run the graph, and return when it is
done on a CPU, when it is queued on a GPU. The update overwrites the variables of the weights.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cubemesh.batches import Array, Batch
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.group import RANK_SEEDS, Group
from cubemesh.frameworks.contract.program import BuildRequest, Snapshot, monotonic_s
from cubemesh.frameworks.contract.snapshot import optimizer_arrays, optimizer_slots
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.contract.weight_inspection import fingerprint, first_nonfinite
from cubemesh.frameworks.tensorflow.network import SeedOf, TensorFlowFunction
from cubemesh.frameworks.tensorflow.optimizers import make_optimizer
from cubemesh.frameworks.tensorflow.runtime import (
    NUMERICS,
    peak_memory_bytes,
    prepare,
    reset_peak_memory,
    synchronize,
    use_precision,
)
from cubemesh.frameworks.tensorflow.workers import mean_over_workers, strategy
from cubemesh.schema.work import Training

Placed = tuple[Any, ...]
"""Images or other inputs of the network, then labels, as tensors."""


class TensorFlowProgram:
    """A network and its optimizer on one device."""

    compiles = False
    """Whether XLA compiles each graph as a whole."""
    buckets: Sequence[Bucket] = ()
    clock = staticmethod(monotonic_s)

    def __init__(self, request: BuildRequest) -> None:
        prepare(request.device, request.threads)
        reset_peak_memory(request.device)
        self.device, self._work = request.device, request.work
        self._loaded = False
        self._loss: Any = float("nan")
        self._precision = request.program.precision
        self._layout = request.program.layout
        self._numerics = NUMERICS[self._precision]
        self._function = TensorFlowFunction(
            request.network,
            self._layout,
            self._numerics,
            compiled=self.compiles,
            on_gpu=request.device != "cpu",
        )
        self._weights = list(self._function.parameters.values())
        self._optimizer = make_optimizer(request.work, self._weights)
        self._seed = request.work.seed + RANK_SEEDS * request.group.rank
        self._strategy = strategy() if request.sync.needs == "all-reduce" else None
        self._passes = tf.Variable(0, dtype=tf.int64)
        self._step = self._graph(self._make_step)
        self._pass = self._graph(self._make_pass)
        self._both = self._graph(self._make_both)
        self._scores = self._graph(self._function.scores)

    def _graph(self, function: Any) -> Any:
        return tf.function(function, autograph=False, jit_compile=self.compiles or None)

    def place(self, batch: Batch) -> Placed:
        """Copy to tensors of the program's layout and type, which `tf.constant` owns."""
        return (*map(self._place, batch.inputs), tf.constant(batch.labels))

    def _place(self, array: Array) -> Any:
        """Images in the program's layout and type; tokens as they are."""
        if array.dtype.kind == "f":
            turned = self._layout == "nhwc" and array.ndim == 4
            array = array.transpose(0, 2, 3, 1) if turned else array
            array = array.astype(self._numerics.arrays.as_numpy_dtype, copy=False)
        return tf.constant(array)

    def train_step(self, placed: Placed) -> None:
        """Forward, backward and update."""
        if not isinstance(self._work, Training):
            raise UsageError("a program built for forward work has no optimizer to train with.")
        self._start()
        self._loss = self._step(*placed)

    def forward(self, placed: Placed) -> None:
        """The forward pass and the loss."""
        self._start()
        self._loss = self._pass(*placed)

    def forward_backward(self, placed: Placed) -> None:
        """Forward and backward pass; the gradients are dropped."""
        self._start()
        self._loss, _ = self._both(*placed)

    def loss(self) -> float:
        """The last step's loss; NaN before the first. Waits for it."""
        return float(self._loss)

    def synchronize(self) -> None:
        """Wait until everything queued is done; on a CPU a step returns when it is."""
        synchronize(self.device)

    def peak_memory_bytes(self) -> int | None:
        """Peak bytes of arrays since the program was built; None on a CPU, where TensorFlow does
        not count."""
        return peak_memory_bytes(self.device)

    def _check_loaded(self) -> None:
        if not self._loaded:
            raise UsageError("the program holds no weights yet: call load() first.")

    def _start(self) -> None:
        """Before each pass."""
        self._check_loaded()
        use_precision(self._precision)

    def _make_step(self, *placed: Any) -> Any:
        """One step, by this worker's replica where there are several workers."""
        if self._strategy is None:
            return self._update(*placed)
        return self._strategy.run(self._update, args=placed)

    def _update(self, *placed: Any) -> Any:
        assert self._optimizer is not None
        loss, gradients = self._make_both(*placed)
        if self._strategy is not None:
            gradients = mean_over_workers(gradients)
        self._optimizer.apply(gradients)
        return loss

    def _make_both(self, *placed: Any) -> Any:
        """The loss and the gradient of each weight; a graph leaves out what is no result."""
        scale = self._numerics.loss_scale
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._weights)
            loss = self._make_pass(*placed)
            scaled = loss if scale == 1 else scale * loss
        # Gradients of an embedding are sparse rows; they are updated as a whole like all others.
        gradients = list(map(tf.convert_to_tensor, tape.gradient(scaled, self._weights)))
        if scale != 1:
            gradients = [g / scale for g in gradients]
        return loss, gradients

    def _make_pass(self, *placed: Any) -> Any:
        *inputs, labels = placed
        return self._function.loss(inputs, labels, self._next_seeds())

    def _next_seeds(self) -> SeedOf:
        """The seeds of the next pass in training mode."""
        count = self._passes.assign_add(1)
        return lambda node: tf.stack([tf.constant(self._seed, tf.int64) + node, count])

    def evaluate(self, placed: Placed) -> Array:
        """Scores (batch, …, classes) in float32, or float64 where the program computes in it."""
        return self.fetch(self.infer(placed))

    def infer(self, placed: Placed) -> tf.Tensor:
        """See `SupportsInference`."""
        self._start()
        return self._scores(*placed[:-1])

    def fetch(self, scores: tf.Tensor) -> Array:
        """See `SupportsInference`."""
        array: Array = scores.numpy()
        return array

    def share_statistics(self, group: Group) -> None:
        """See `SupportsSharedEvaluation`. The group has no broadcast of arrays: bytes are sent as
        text."""
        state = self._function.state
        own = {name: base64.b64encode(v.numpy().tobytes()).decode() for name, v in state.items()}
        sent = group.broadcast_object(own if group.rank == 0 else None) if own else {}
        for name, text in sent.items():
            variable = state[name]
            values = np.frombuffer(base64.b64decode(text), variable.dtype.as_numpy_dtype)
            variable.assign(tf.constant(values.reshape(variable.shape)))

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` into the variables, in the program's layout, and reset the
        optimizer."""
        function = self._function
        check_weights(weights, function.network)
        for name, variable in {**function.parameters, **function.state}.items():
            array = function.to_program(name, weights[name])
            variable.assign(tf.constant(array.astype(variable.dtype.as_numpy_dtype)))
        self._passes.assign(0)
        if self._optimizer is not None:
            self._optimizer.start()
        self._loaded = True

    def state(self) -> dict[str, Array]:
        """A copy of every array on the host, in float32, or float64 for programs in fp64."""
        self._check_loaded()
        function = self._function
        variables = {**function.parameters, **function.state}
        return {
            name: np.array(function.to_graph(name, variable.numpy()), order="C")
            for name, variable in variables.items()
        }

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`. Random numbers depend on the number of passes alone."""
        assert self._optimizer is not None, "a training program"
        slots = {
            slot: {
                name: np.array(self._function.to_graph(name, array.numpy()), order="C")
                for name, array in zip(self._function.parameters, arrays, strict=True)
            }
            for slot, arrays in self._optimizer.slots.items()
        }
        counts = {"passes": int(self._passes), "updates": int(self._optimizer.steps)}
        return Snapshot(weights=self.state(), arrays=optimizer_arrays(slots), plain=counts)

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        assert self._optimizer is not None, "a training program"
        self.load(snapshot.weights)
        function, slots = self._function, self._optimizer.slots
        found = optimizer_slots(snapshot.arrays, function.parameters, slots)
        for slot, variables in slots.items():
            for name, variable in zip(function.parameters, variables, strict=True):
                variable.assign(tf.constant(function.to_program(name, found[slot][name])))
        self._passes.assign(snapshot.plain["passes"])
        self._optimizer.steps.assign(snapshot.plain["updates"])

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`."""
        assert self._optimizer is not None, "a training program"
        self._optimizer.rate.assign(rate)

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`."""
        self._check_loaded()
        return fingerprint({n: v.numpy() for n, v in self._function.parameters.items()})

    def first_nonfinite(self, placed: Placed) -> str:
        """See `SupportsWeightInspection`."""

        def check(*inputs: Any) -> Any:
            return self._function.finite_outputs(inputs, self._next_seeds())

        weights = self.state()  # before statistics are updated
        finite = self._graph(check)(*placed[:-1])
        outputs = {name: bool(value) for name, value in finite.items()}
        return first_nonfinite(self._function.network, weights, outputs)

    def close(self) -> None:
        """Drop every array and every graph."""
        del self._step, self._pass, self._both, self._scores
        del self._function, self._weights, self._optimizer
        self._loss = float("nan")


def build(request: BuildRequest) -> TensorFlowProgram:
    """The program for `request`."""
    return TensorFlowProgram(request)
