"""A training step in JAX: a compiled, pure function whose arrays are donated:

    (carry, learning rate, inputs, labels) ──▶ (carry, loss)

    carry = weights, state, optimizer, random key, loss scale

The carry is donated: new arrays overwrite the old ones. The first step at a batch size compiles.
Dispatch is asynchronous: a step returns at once, and `synchronize` waits for the last outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cubemesh.batches import Array, Batch
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.program import BuildRequest, Snapshot, monotonic_s
from cubemesh.frameworks.contract.snapshot import (
    GENERATOR,
    generator_states,
    optimizer_arrays,
    optimizer_slots,
)
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.contract.weight_inspection import fingerprint, first_nonfinite
from cubemesh.frameworks.jax.loss_scaling import JaxLossScaling, make_scaling
from cubemesh.frameworks.jax.network import JaxFunction
from cubemesh.frameworks.jax.optimizers import JaxOptimizer, make_optimizer
from cubemesh.frameworks.jax.runtime import NUMERICS, JaxNumerics, is_out_of_memory, prepare
from cubemesh.frameworks.jax.sharding import DeviceSharding, devices_of
from cubemesh.networks.precision import layer_precisions
from cubemesh.schema.work import Infer, InferLoad, Training

Placed = tuple[jax.Array, ...]
"""Images or other inputs of the network, then labels, on the device."""

_GENERATOR = "rbg"
"""XLA's own generator (Philox): the default one takes longer to compile than a network."""
_KEY = "jax"
"""Name of its state in a snapshot."""
_ALIGNMENT_BYTES = 64
"""Alignment of an array that XLA's CPU client uses without a copy
(xla/cpu_function_runtime.h, MinAlign)."""
_WAITED_BYTES = 4 * 2**20
"""Above this a copy on the host, into new pages each time, takes longer than waiting for the
transfer: on an H200 waiting makes AlexNet's step (39 MB) 1.40 times as fast as a copy does,
and LittleCNN's (0.8 MB) 0.87 times."""


_WITH_CONVOLUTIONS = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONVOLUTION"
    )
}
"""Compiler option: what is launched together, as CUDA graphs. XLA's default leaves convolutions
out, as not all can be captured: queued passes of ResNet-50 on one resident image in fp16 then take
1.50 ms each on an H200, with them 0.47 ms (benchmarks/LOG.md)."""


class Carry(NamedTuple):
    """State passed from one step to the next."""

    parameters: dict[str, jax.Array]
    state: dict[str, jax.Array]
    optimizer: dict[str, Any]
    key: jax.Array
    scaling: dict[str, jax.Array]


class JaxProgram:
    """A network and its optimizer on one device, or replicated on several (sharding.py)."""

    buckets: Sequence[Bucket] = ()

    def __init__(self, request: BuildRequest) -> None:
        self.device = request.device
        devices = prepare(request.device, request.threads, devices_of(request))
        self._layout = DeviceSharding(devices)
        self._device = self._layout.devices[0]
        self._numerics = NUMERICS[request.program.precision]
        self._function = JaxFunction(
            request.network,
            request.program.layout,
            self._numerics,
            _layer_numerics(request),
            norm_parts=len(devices) if request.program.batch_norm == "device" else 1,
        )
        self._scaling = make_scaling(request.program)
        self._seed = request.work.seed
        self._optimizer = make_optimizer(request.work)
        self._work = request.work
        infers = isinstance(request.work, Infer | InferLoad)
        self._narrow = self._function.product_types() if infers else {}
        """Weights that are held in the type of products, as no optimizer updates them."""
        self._carry: Carry | None = None
        self._rate: Any = None
        self._loss: Any = float("nan")
        self._last_scores: Any = None
        step = make_step(self._function, self._optimizer, self._scaling)
        results = self._layout.results
        self._begin = jax.jit(self._make_carry, **results)
        self._step = jax.jit(step, donate_argnums=0, **results)
        self._pass = jax.jit(make_forward(self._function), donate_argnums=(1, 2), **results)
        both = make_forward_backward(self._function, self._scaling)
        self._both = jax.jit(both, donate_argnums=(1, 2), **results)
        self._scores = jax.jit(self._function.scores)
        self._captured_scores: Any = None
        """The same with `_WITH_CONVOLUTIONS`, until it is tried."""
        if self._device.platform == "gpu":
            self._captured_scores = jax.jit(
                self._function.scores, compiler_options=_WITH_CONVOLUTIONS
            )
        self._turn = jax.jit(self._turn_images)

    def place(self, batch: Batch) -> Placed:
        """Copy to the device, then convert to the program's layout and type there. A CPU computes
        from the copy in place. A small batch is copied before its transfer to a GPU; a large one
        is sent without a copy, and the transfer is waited for."""
        waits = self._device.platform != "cpu" and batch.size_bytes >= _WAITED_BYTES
        sent = [self._send(array, waits) for array in (*batch.inputs, batch.labels)]
        if waits:
            jax.block_until_ready(sent)
        return tuple(map(self._turned, sent))

    def _send(self, array: Array, waits: bool) -> jax.Array:
        dtype = array.dtype if array.dtype.kind == "f" else np.dtype(np.int32)
        host = np.ascontiguousarray(array, dtype) if waits else _aligned_copy(array, dtype)
        return jax.device_put(host, self._layout.of_batch(len(host)))

    def _turned(self, sent: jax.Array) -> jax.Array:
        if sent.dtype.kind != "f":
            return sent
        converts = self._function.layout == "nhwc" or self._numerics.arrays != sent.dtype
        return self._turn(sent) if converts else sent

    def _turn_images(self, images: jax.Array) -> jax.Array:
        images = images.astype(self._numerics.arrays)
        turns = self._function.layout == "nhwc" and images.ndim == 4
        return images.transpose(0, 2, 3, 1) if turns else images

    def train_step(self, placed: Placed) -> None:
        """Queue forward, backward and update."""
        self._carry, self._loss = self._step(self._carry, self._rate, *placed)

    def forward(self, placed: Placed) -> None:
        """Queue the forward pass and the loss."""
        carry = self._loaded()
        state, key, self._loss = self._pass(carry.parameters, carry.state, carry.key, *placed)
        self._carry = carry._replace(state=state, key=key)

    def forward_backward(self, placed: Placed) -> None:
        """Queue forward and backward pass; the gradients are dropped."""
        carry = self._loaded()
        scale = self._scaling.scale(carry.scaling) if self._scaling else 1.0
        given = (carry.parameters, carry.state, carry.key, scale)
        state, key, self._loss, _ = self._both(*given, *placed)
        self._carry = carry._replace(state=state, key=key)

    def evaluate(self, placed: Placed) -> Array:
        """Scores (batch, …, classes) in float32, or float64 where the program computes in it."""
        return self.fetch(self.infer(placed))

    def infer(self, placed: Placed) -> jax.Array:
        """See `SupportsInference`."""
        carry = self._loaded()
        given = (carry.parameters, carry.state, *placed[:-1])
        if self._captured_scores is not None:
            self._try_capture(given)
        scores: jax.Array = self._scores(*given)
        self._last_scores = scores
        return scores

    def _try_capture(self, given: Sequence[Any]) -> None:
        """Launch convolutions together with the rest from now on, where XLA knows how to and those
        of this network can be captured."""
        tried, self._captured_scores = self._captured_scores, None
        try:
            jax.block_until_ready(tried(*given))
        except jax.errors.JaxRuntimeError as error:
            if is_out_of_memory(error):
                raise
            return
        self._scores = tried

    def fetch(self, scores: jax.Array) -> Array:
        """See `SupportsInference`."""
        return np.array(scores)

    def loss(self) -> float:
        """The last step's loss; NaN before the first."""
        return float(self._loss)

    def loss_scale(self) -> tuple[float, str] | None:
        """See `SupportsLossScaling`."""
        if self._scaling is None or self._optimizer is None:
            return None
        return float(self._scaling.scale(self._loaded().scaling)), self._scaling.method

    def synchronize(self) -> None:
        """Wait for the last outputs; an error on the device is raised here."""
        jax.block_until_ready((self._carry, self._loss, self._last_scores))

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` to the device, in the program's layout, and reset the optimizer."""
        network = self._function.network
        check_weights(weights, network)
        own = {n: weights[n] for n in (*network.parameters, *network.state)}
        self._carry = jax.block_until_ready(
            self._begin(jax.device_put(own, self._layout.everywhere))
        )
        if isinstance(self._work, Training):
            self.set_learning_rate(self._work.learning_rate)

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`."""
        array = np.asarray(rate, self._numerics.arrays)
        self._rate = jax.device_put(array, self._layout.everywhere)

    def _make_carry(self, arrays: dict[str, jax.Array]) -> Carry:
        """The first carry. Its arrays are copies, so that they may be donated."""
        network = self._function.network
        wide = self._numerics.arrays
        turned = {
            name: jnp.copy(
                self._function.to_program(name, array).astype(self._narrow.get(name, wide))
            )
            for name, array in arrays.items()
        }
        parameters = {name: turned[name] for name in network.parameters}
        return Carry(
            parameters=parameters,
            state={name: turned[name] for name in network.state},
            optimizer=self._optimizer.start(parameters) if self._optimizer else {},
            key=jax.random.key(self._seed, impl=_GENERATOR),
            scaling=self._scaling.start() if self._scaling else {},
        )

    def state(self) -> dict[str, Array]:
        """A copy of every array on the host, in float32, or float64 for programs in fp64."""
        carry, network = self._loaded(), self._function.network
        # Copied on the device first: an array that NumPy has read cannot be donated any more.
        own = {**carry.parameters, **carry.state}
        arrays = jax.tree.map(lambda a: jnp.array(a, self._numerics.arrays, copy=True), own)
        return {
            name: np.array(self._function.to_graph(name, np.asarray(arrays[name])), order="C")
            for name in (*network.parameters, *network.state)
        }

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`."""
        carry = self._loaded()
        slots, counts = _slots_and_counts(carry.optimizer)
        # Copied on the device first, as in `state`.
        copied, key = jax.tree.map(jnp.copy, (slots, jax.random.key_data(carry.key)))
        on_host = {
            slot: {n: self._function.to_graph(n, np.asarray(a)) for n, a in arrays.items()}
            for slot, arrays in copied.items()
        }
        arrays = {**optimizer_arrays(on_host), GENERATOR + _KEY: np.asarray(key)}
        return Snapshot(
            weights=self.state(),
            arrays={name: np.array(array, order="C") for name, array in arrays.items()},
            plain={"counts": _items(counts), "scaling": _items(carry.scaling)},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        self.load(snapshot.weights)
        carry = self._loaded()
        slots, counts = _slots_and_counts(carry.optimizer)
        found = optimizer_slots(snapshot.arrays, carry.parameters, slots)
        turned = {
            slot: {n: self._function.to_program(n, array) for n, array in arrays.items()}
            for slot, arrays in found.items()
        }
        plain = snapshot.plain
        read = {
            "slots": turned,
            "counts": {n: np.asarray(plain["counts"][n], a.dtype) for n, a in counts.items()},
            "scaling": {
                n: np.asarray(plain["scaling"][n], a.dtype) for n, a in carry.scaling.items()
            },
            "key": generator_states(snapshot.arrays, (_KEY,), self.device)[_KEY],
        }
        # Copies: an array that is shared with NumPy cannot be donated.
        placed = jax.tree.map(jnp.copy, jax.device_put(read, self._layout.everywhere))
        self._carry = carry._replace(
            optimizer={**placed["slots"], **placed["counts"]},
            scaling=placed["scaling"],
            key=jax.random.wrap_key_data(placed["key"], impl=_GENERATOR),
        )

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`."""
        weights = self.state()
        return fingerprint({name: weights[name] for name in self._function.network.parameters})

    def first_nonfinite(self, placed: Placed) -> str:
        """See `SupportsWeightInspection`."""
        carry = self._loaded()
        check = jax.jit(self._function.finite_outputs)
        finite = check(carry.parameters, carry.state, carry.key, *placed[:-1])
        outputs = {name: bool(value) for name, value in finite.items()}
        return first_nonfinite(self._function.network, self.state(), outputs)

    def _loaded(self) -> Carry:
        if self._carry is None:
            raise UsageError("the program holds no weights yet: call load() first.")
        return self._carry

    def peak_memory_bytes(self) -> int | None:
        """Peak bytes of arrays and temporaries since the process began, the maximum over its GPUs;
        None on a CPU, where XLA does not count."""
        counts = [device.memory_stats() or {} for device in self._layout.devices]
        return max(
            (c["peak_bytes_in_use"] for c in counts if "peak_bytes_in_use" in c), default=None
        )

    clock = staticmethod(monotonic_s)

    def close(self) -> None:
        """Drop every array and every compiled function."""
        self._carry, self._loss, self._last_scores = None, float("nan"), None
        steps = (self._step, self._pass, self._both)
        for compiled in (self._begin, *steps, self._scores, self._turn):
            compiled.clear_cache()


def make_step(
    function: JaxFunction, optimizer: JaxOptimizer | None, scaling: JaxLossScaling | None = None
) -> Any:
    """The training step: (carry, learning rate, each input, labels) → (carry, loss)."""
    scaled_loss = _make_scaled_loss(function, scaling)

    def step(carry: Carry, rate: jax.Array, *placed: jax.Array) -> tuple[Carry, jax.Array]:
        if optimizer is None:
            raise UsageError("a program built for forward work has no optimizer to train with.")
        key, own_key = jax.random.split(carry.key)
        scale = scaling.scale(carry.scaling) if scaling else 1.0
        gradients, (loss, state) = jax.grad(scaled_loss, has_aux=True)(
            carry.parameters, scale, carry.state, placed[:-1], placed[-1], own_key
        )
        gradients = _exact(gradients)
        if scaling is None:
            parameters, slots = optimizer.update(gradients, carry.optimizer, carry.parameters, rate)
            return Carry(parameters, state, slots, key, carry.scaling), loss
        gradients = jax.tree.map(lambda g: g / scale, gradients)
        updated = optimizer.update(gradients, carry.optimizer, carry.parameters, rate)
        before = carry.parameters, carry.optimizer
        (parameters, slots), scaled = scaling.apply_or_skip(
            carry.scaling, gradients, updated, before
        )
        return Carry(parameters, state, slots, key, scaled), loss

    return step


def _make_scaled_loss(function: JaxFunction, scaling: JaxLossScaling | None) -> Any:
    """(parameters, scale, rest of the loss's arguments) → (loss × scale, (loss, state))."""

    def scaled_loss(
        parameters: Any, scale: Any, *rest: Any
    ) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        loss, state = function.loss(parameters, *rest)
        return (loss if scaling is None else scale * loss), (loss, state)

    return scaled_loss


def _exact(gradients: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same, not fused with the update in fp64. There XLA lets cuDNN add the momentum to a
    convolution's gradient, times 0.9 in single precision: an error of 1e-8 of the velocity (JAX
    0.11 on an H200)."""
    is_exact = any(array.dtype == jnp.float64 for array in gradients.values())
    return jax.lax.optimization_barrier(gradients) if is_exact else gradients


def _slots_and_counts(optimizer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of an optimizer: arrays by slot and parameter, and scalars by name."""
    slots = {name: value for name, value in optimizer.items() if isinstance(value, dict)}
    return slots, {name: value for name, value in optimizer.items() if name not in slots}


def _items(scalars: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Scalars as plain data; every float32 is a float."""
    return {name: np.asarray(jnp.copy(value)).item() for name, value in scalars.items()}


def _layer_numerics(request: BuildRequest) -> dict[str, tuple[JaxNumerics, JaxNumerics]]:
    """Node → numerics of its product and of its gradients, for `precision_of`."""
    named = layer_precisions(request.network, request.program.precision_of)
    return {node: (NUMERICS[p.forward], NUMERICS[p.backward]) for node, p in named.items()}


def make_forward(function: JaxFunction) -> Any:
    """The forward pass: (parameters, state, key, each input, labels) → (state, key, loss)."""

    def forward(parameters: Any, state: Any, key: jax.Array, *placed: jax.Array) -> Any:
        key, own_key = jax.random.split(key)
        loss, state = function.loss(parameters, state, placed[:-1], placed[-1], own_key)
        return state, key, loss

    return forward


def make_forward_backward(function: JaxFunction, scaling: JaxLossScaling | None = None) -> Any:
    """Forward and backward pass: (parameters, state, key, scale of the loss, each input, labels) →
    (state, key, loss, gradients). XLA would leave out gradients that are not results."""
    scaled_loss = _make_scaled_loss(function, scaling)

    def both(parameters: Any, state: Any, key: jax.Array, scale: Any, *placed: jax.Array) -> Any:
        key, own_key = jax.random.split(key)
        gradients, (loss, state) = jax.grad(scaled_loss, has_aux=True)(
            parameters, scale, state, placed[:-1], placed[-1], own_key
        )
        return state, key, loss, gradients

    return both


def _aligned_copy(array: Array, dtype: np.dtype[Any]) -> Array:
    """A copy of `array` that XLA uses in place."""
    size_bytes = array.size * dtype.itemsize
    room = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT_BYTES
    copy = room[start : start + size_bytes].view(dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def build(request: BuildRequest) -> JaxProgram:
    """The program for `request`."""
    return JaxProgram(request)
