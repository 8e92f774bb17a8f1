"""A training step in Keras: `model.train_on_batch` of a functional model, on any backend.

The model is compiled with an optimizer and a weighted loss for each head. What depends on the
backend (arrays, devices, passes without an update) is in `on_tensorflow.py`, `on_jax.py` and
`on_torch.py`, which select the backend and then import this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from cubemesh.batches import Array, Batch
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    Capabilities,
    Snapshot,
    Unsupported,
    monotonic_s,
)
from cubemesh.frameworks.contract.snapshot import (
    GENERATOR,
    generator_states,
    optimizer_arrays,
    optimizer_slots,
)
from cubemesh.frameworks.contract.validation import check_network, check_weights
from cubemesh.frameworks.contract.weight_inspection import fingerprint, first_nonfinite
from cubemesh.frameworks.keras.backend import computes_float64
from cubemesh.frameworks.keras.layers import LOWERINGS, KerasContext, TorchRules
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.schema.work import Training

POLICIES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "mixed_bfloat16",
}
"""Precision → Keras's name of its policy: the types of arrays and of computation."""

_TRANSPOSED: dict[type, tuple[tuple[int, ...], tuple[int, ...]]] = {
    Convolution: ((2, 3, 1, 0), (3, 2, 0, 1)),
    Linear: ((1, 0), (1, 0)),
}
"""Layer → axes of its weight from the graph's layout to Keras's, and back."""


def keras_capabilities(backend: Capabilities) -> Capabilities:
    """What Keras can do here on a backend that can do `backend`: CNNs, on one device."""
    float64 = computes_float64(keras.backend.backend())
    unavailable = frozenset() if float64 else frozenset({"fp64"})
    return Capabilities(
        works=frozenset(
            {"train_steps", "forward", "forward_backward", "train", "infer", "input", "ceiling"}
        ),
        devices=backend.devices,
        precisions={
            kind: (precisions & frozenset(POLICIES)) - unavailable
            for kind, precisions in backend.precisions.items()
        },
        layouts=frozenset({"nhwc"}),
        optimizers=frozenset({"sgd", "rmsprop", "adam"}),
        hint=backend.hint,
        lacking=backend.lacking,
    )


class KerasProgram(ABC):
    """A functional model on one device."""

    framework: ClassVar[str]
    """Its name in `FRAMEWORKS`."""
    compiles: ClassVar[bool] = False
    """Whether Keras compiles the step as a whole (`jit_compile`)."""
    rules: ClassVar[type[TorchRules]] = TorchRules
    """The optimizers."""
    buckets: Sequence[Bucket] = ()
    clock = staticmethod(monotonic_s)

    _current: ClassVar[KerasProgram | None] = None
    """The program that Keras's settings of the process are of."""

    def __init__(self, request: BuildRequest) -> None:
        _check_inputs(request.network, self.framework)
        check_network(request.network, {*LOWERINGS, *self._more_layers()}, self.framework)
        self.device, self._work = request.device, request.work
        self._precision = request.program.precision
        self._network = request.network
        self._loaded = False
        self._loss: Any = float("nan")
        self._policy = keras.DTypePolicy(POLICIES[self._precision])
        self._dtype = self._policy.variable_dtype
        self._variables: dict[str, Any] = {}
        self._transposed: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._prepare(request)
        self._use_settings()
        self.model, self._evaluated = self._models(request.network)
        self._weights = [h.weight for h in request.network.heads]

    @abstractmethod
    def _prepare(self, request: BuildRequest) -> None:
        """Apply the backend's settings of the whole process, and choose the device."""

    @abstractmethod
    def _apply_precision(self) -> None:
        """Apply settings of the process that another program with another precision changes."""

    def _assign(self, variable: Any, array: Array) -> None:
        """Copy `array` into a variable."""
        variable.assign(array)

    def _more_layers(self) -> frozenset[type]:
        """Layer types that it runs besides `LOWERINGS`."""
        return frozenset()

    def _made(self, node: Node, context: KerasContext, *inputs: Any) -> Any:
        """The value of a node, in Keras's functional API."""
        return LOWERINGS[type(node.layer)](node.layer, context, *inputs)

    def _use_settings(self) -> None:
        """Settings of the process under which this program's step is traced and runs: losses and
        the learning rate take their type from them when they are built."""
        if KerasProgram._current is not self:
            KerasProgram._current = self
            keras.config.set_floatx(self._dtype)
            keras.config.set_dtype_policy(self._policy)
            self._apply_precision()

    def _models(self, network: Network) -> tuple[Any, Any]:
        """The model with every head, and that of the evaluated head; they share layers."""
        channels, height, width = network.inputs[0].shape
        images = keras.Input((height, width, channels))
        values = {network.inputs[0].name: images}
        for i, node in enumerate(network.nodes):
            context = KerasContext(shape=node.shape, seed=self._work.seed + i, full=self._dtype)
            inputs = (values[name] for name in node.inputs)
            values[node.name] = self._made(node, context, *inputs)
            for role, name in {**node.parameters, **node.state}.items():
                if name in self._variables:
                    raise Unsupported(
                        f"{self.framework} cannot share arrays, as {network.name} does '{name}'."
                    )
                self._variables[name] = context.arrays[role]
                if role == "weight" and type(node.layer) in _TRANSPOSED:
                    self._transposed[name] = _TRANSPOSED[type(node.layer)]
        self._outputs = {node.name: values[node.name] for node in network.nodes}
        heads = [values[head.value] for head in network.heads]
        return keras.Model(images, heads), keras.Model(images, values[network.output])

    @abstractmethod
    def place(self, batch: Batch) -> tuple[Any, Any]:
        """Copy to arrays of the backend on the device, in Keras's layout and type."""

    def train_step(self, placed: Any) -> None:
        """Forward, backward and update."""
        self._check_trains()
        self._start()
        images, labels = placed
        logs = self.model.train_on_batch(images, [labels] * len(self._weights))
        self._loss = logs[0] if isinstance(logs, (list, tuple)) else logs

    def _start(self) -> None:
        """Before each pass."""
        self._check_loaded()
        self._use_settings()

    @abstractmethod
    def forward(self, placed: Any) -> None:
        """The forward pass in training mode, and the loss."""

    @abstractmethod
    def forward_backward(self, placed: Any) -> None:
        """Forward and backward pass in training mode; the gradients are dropped."""

    @abstractmethod
    def infer(self, placed: Any) -> Any:
        """See `SupportsInference`: the scores of `predict`, without its copies to the host."""

    def fetch(self, scores: Any) -> Array:
        """See `SupportsInference`."""
        return self._on_host(scores).astype(self._dtype)

    @abstractmethod
    def _on_host(self, array: Any) -> Array:
        """An array of the backend as one of NumPy; waits for it."""

    def _mean_loss(self, values: Any, labels: Any) -> Any:
        """The loss of `fit` from the value of each head; Keras has no method for it alone."""
        values = values if isinstance(values, (list, tuple)) else [values]  # of one head: itself
        return sum(
            weight * ops.mean(_cross_entropy(labels, value))
            for weight, value in zip(self._weights, values, strict=True)
        )

    def evaluate(self, placed: Any) -> Array:
        """Scores (batch, classes) in float32, or float64 where the program computes in it."""
        return self.fetch(self.infer(placed))

    def loss(self) -> float:
        """The last step's loss; NaN before the first."""
        return float(self._loss)

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    @abstractmethod
    def peak_memory_bytes(self) -> int | None:
        """See `Program.peak_memory_bytes`."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` into Keras's variables, and reset the optimizer."""
        check_weights(weights, self._network)
        self._use_settings()
        for name, variable in self._variables.items():
            array = self._to_keras(name, weights[name])
            self._assign(variable, array.astype(self._dtype, order="C"))
        work = self._work
        if isinstance(work, Training):
            rates = (work.learning_rate, work.momentum, work.weight_decay)
            self.model.compile(
                optimizer=self.rules(work.optimizer, *rates),
                loss=[_cross_entropy] * len(self._weights),
                loss_weights=self._weights,
                jit_compile=self.compiles,
            )
        self._loaded = True

    def state(self) -> dict[str, Array]:
        """A copy of every array on the host, in float32, or float64 for programs in fp64."""
        self._check_loaded()
        names = (*self._network.parameters, *self._network.state)
        return {name: self._to_graph(name, self._variables[name]) for name in names}

    def _check_loaded(self) -> None:
        if not self._loaded:
            raise UsageError("the program holds no weights yet: call load() first.")

    def _check_trains(self) -> None:
        if not isinstance(self._work, Training):
            raise UsageError("a program built for forward work has no optimizer to train with.")

    def _to_keras(self, name: str, array: Array) -> Array:
        """An array of a variable's shape from the graph's layout to Keras's."""
        return array.transpose(self._transposed[name][0]) if name in self._transposed else array

    def _to_graph(self, name: str, variable: Any) -> Array:
        """A copy on the host of a variable of that shape, in the graph's layout."""
        array = self._on_host(variable.value)
        if name in self._transposed:
            array = array.transpose(self._transposed[name][1])
        return np.array(array, order="C")

    def _slots(self) -> dict[str, dict[str, Any]]:
        """The optimizer's variables by slot and parameter; they are made at the first step, or
        here."""
        optimizer, weights = self.model.optimizer, self.model.trainable_variables
        optimizer.build(weights)
        places = {id(variable): place for place, variable in enumerate(weights)}
        return {
            slot: {
                name: variables[places[id(self._variables[name])]]
                for name in self._network.parameters
            }
            for slot, variables in optimizer.slots.items()
        }

    def _generators(self) -> dict[str, Any]:
        """The variables of random generators, which are integers, by their places."""
        is_float, variables = keras.backend.is_float_dtype, self.model.non_trainable_variables
        found = (variable for variable in variables if not is_float(variable.dtype))
        return {f"keras.{place}": variable for place, variable in enumerate(found)}

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`."""
        self._check_trains()
        weights = self.state()
        slots = {
            slot: {name: self._to_graph(name, variable) for name, variable in variables.items()}
            for slot, variables in self._slots().items()
        }
        states = {
            GENERATOR + name: np.array(ops.convert_to_numpy(variable.value))
            for name, variable in self._generators().items()
        }
        return Snapshot(
            weights=weights,
            arrays={**optimizer_arrays(slots), **states},
            plain={"updates": self.model.optimizer.updates()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        self.load(snapshot.weights)
        self._check_trains()
        slots, generators = self._slots(), self._generators()
        found = optimizer_slots(snapshot.arrays, self._network.parameters, slots)
        for slot, variables in slots.items():
            for name, variable in variables.items():
                array = self._to_keras(name, found[slot][name])
                self._assign(variable, array.astype(self._dtype, order="C"))
        states = generator_states(snapshot.arrays, generators, self.device)
        for name, variable in generators.items():
            self._assign(variable, states[name])
        self.model.optimizer.continue_after(snapshot.plain["updates"])

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`."""
        weights = self.state()
        return fingerprint({name: weights[name] for name in self._network.parameters})

    def first_nonfinite(self, placed: Any) -> str:
        """See `SupportsWeightInspection`."""
        self._start()
        weights = self.state()  # before statistics are updated
        found = keras.Model(self.model.inputs, self._outputs)(placed[0], training=True)
        outputs = {name: bool(np.isfinite(self._on_host(v)).all()) for name, v in found.items()}
        return first_nonfinite(self._network, weights, outputs)

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`."""
        self.model.optimizer.set_rate(rate)

    def close(self) -> None:
        """Drop the models and their arrays."""
        if KerasProgram._current is self:
            KerasProgram._current = None
        del self.model, self._evaluated, self._variables, self._outputs
        self._loss = float("nan")


def _check_inputs(network: Network, framework: str) -> None:
    """Unsupported for a network whose inputs are not images and labels."""
    fed = (*network.inputs, *network.targets)
    if len(fed) != 2 or network.inputs[0].dtype != "float":
        raise Unsupported(
            f"{framework} supports images and labels as input; {network.name} takes "
            f"{', '.join(i.name for i in fed)}."
        )


def _cross_entropy(labels: Any, scores: Any) -> Any:
    """Of each sample; in float64 or float32."""
    dtype = keras.backend.standardize_dtype(scores.dtype)
    full = ops.cast(scores, dtype if dtype == "float64" else "float32")
    return ops.sparse_categorical_crossentropy(ops.reshape(labels, (-1,)), full, from_logits=True)
