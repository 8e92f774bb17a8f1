"""Flax modules of a user, which run as they are: their arrays by name, and a pure function.

    flax.linen   `init` makes the arrays; `apply` takes them; collections other than `params`, such
                 as `batch_stats`, are state
    flax.nnx     the object has its arrays: `Param` is trained, `BatchStat` is state

Images come with their channels last. A parameter `train`, `training` or `deterministic` of
`__call__` is set to the mode. FLOPs are those of XLA's cost analysis, which counts every operation.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cubemesh.batches import Array
from cubemesh.frameworks.contract.own_module import (
    SAMPLES,
    DescriptionRequest,
    check_scores,
    check_trained,
    check_unchanged,
    make,
    of_framework,
    opaque_description,
    scores_in,
)
from cubemesh.frameworks.jax.runtime import is_out_of_memory
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import UserObject, attempt

Named = dict[str, jax.Array]
_TRAINING = ("train", "training", "is_training")
_EVALUATION = ("deterministic", "use_running_average")


class FlaxModule:
    """A module as a function of its arrays."""

    def __init__(self, module: Any, x: jax.Array) -> None:
        self._module = module
        self._mode = _mode_of(type(module).__call__)
        nnx = importlib.import_module("flax.nnx")
        self._is_nnx = isinstance(module, nnx.Module)
        key = jax.random.key(0)
        if self._is_nnx:
            module.eval()
            self._evaluated = nnx.graphdef(module)
            module.train()
            self._definition, trained, state, self._rest = nnx.split(
                module, nnx.Param, nnx.BatchStat, ...
            )
        else:
            meta = importlib.import_module("flax.core.meta")
            made = module.init({"params": key, "dropout": key}, x, **self._mode(False))
            state = dict(meta.unbox(made))
            trained = state.pop("params", {})
        self.trained, self._trained = _named(trained)
        self.state, self._state = _named(state)

    def __call__(
        self, trained: Named, state: Named, x: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, Named]:
        """Scores and new state; in training mode where there is a key."""
        own = jax.tree.unflatten(self._trained, [trained[name] for name in self.trained])
        before = jax.tree.unflatten(self._state, [state[name] for name in self.state])
        if self._is_nnx:
            return self._nnx(own, before, x, key)
        mode = self._mode(key is not None)
        if key is None:
            found = self._module.apply({"params": own, **before}, x, **mode)
            return scores_of(found), state
        found, after = self._module.apply(
            {"params": own, **before}, x, **mode, rngs={"dropout": key}, mutable=list(before)
        )
        return scores_of(found), _named(after)[0] if before else state

    def _nnx(
        self, own: Any, before: Any, x: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, Named]:
        nnx = importlib.import_module("flax.nnx")
        rest = self._rest
        if key is not None:
            keys = count()
            rest = jax.tree.map(
                lambda a: jax.random.fold_in(key, next(keys)) if _is_key(a) else a, rest
            )
        definition = self._evaluated if key is None else self._definition
        module = nnx.merge(definition, own, before, rest)
        found = module(x, **self._mode(key is not None))
        if key is None:
            return scores_of(found), dict(zip(self.state, jax.tree.leaves(before), strict=True))
        return scores_of(found), _named(nnx.state(module, nnx.BatchStat))[0]


def load(named: UserObject, x: jax.Array, found: Any = None) -> FlaxModule:
    """The module as a function. UserCodeError where it cannot be built or run on `x`."""
    if found is None:
        found = make(named, is_out_of_memory)
    module = of_framework(named, found, "jax")
    shown = "×".join(map(str, x.shape[1:]))
    return attempt(  # type: ignore[no-any-return]
        named, f"making its arrays for {shown}", lambda: FlaxModule(module, x), is_out_of_memory
    )


def load_described(own: OwnNetwork, x: jax.Array) -> FlaxModule:
    """The module of a description. UserCodeError as of `load`, and where its files are others."""
    return load(check_unchanged(own), x)


def describe(request: DescriptionRequest, found: Any) -> OwnNetwork:
    """The description of a module as one layer. UserCodeError where it cannot be run."""
    named = request.named
    x = _input(request)
    module = load(named, x, found)
    running = f"running it on {request.shown_input}"
    key = jax.random.key(0)
    scores = attempt(
        named, running, lambda: jax.eval_shape(module, module.trained, module.state, x, None)[0]
    )
    floating = jnp.issubdtype(scores.dtype, jnp.floating)
    check_scores(request, tuple(scores.shape), floating=floating)
    check_trained(request, module.trained)

    def loss(trained: Named, state: Named, x: jax.Array) -> jax.Array:
        scores, _ = module(trained, state, x, key)
        return -jax.nn.log_softmax(scores.astype(jnp.float32))[..., 0].mean()

    training = f"training it on {request.shown_input}"
    given = (module.trained, module.state, x)
    forward = attempt(named, training, lambda: _flops(loss, *given))
    both = attempt(named, training, lambda: _flops(jax.value_and_grad(loss), *given))
    layer = Opaque(
        output=tuple(scores.shape[1:]),
        trained=tuple((n, tuple(a.shape)) for n, a in module.trained.items()),
        updated=tuple((n, tuple(a.shape)) for n, a in module.state.items()),
        forward_flops=forward // SAMPLES,
        backward_flops=max(0, both - forward) // SAMPLES,
        saved_values=_saved_bytes(loss, *given) // 4 // SAMPLES,
    )
    arrays: dict[str, Array] = {
        n: np.asarray(a) for n, a in (module.trained | module.state).items()
    }
    return opaque_description(request, "jax", layer, arrays)


def scores_of(result: Any) -> jax.Array:
    """See `scores_in`."""
    scores: jax.Array = scores_in(result, jax.Array, "an array")
    return scores


def _input(request: DescriptionRequest) -> jax.Array:
    """Samples as the module takes them: images with their channels last, 32-bit tokens."""
    samples = request.samples()
    if request.vocabulary is not None:
        return jnp.asarray(samples, jnp.int32)
    return jnp.asarray(samples.transpose(0, 2, 3, 1), jnp.float32)


def _mode_of(call: Callable[..., Any]) -> Callable[[bool], dict[str, bool]]:
    """Arguments of a call that say whether it trains."""
    try:
        names = set(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        names = set()

    def mode(training: bool) -> dict[str, bool]:
        return {n: training for n in _TRAINING if n in names} | {
            n: not training for n in _EVALUATION if n in names
        }

    return mode


def _named(tree: Any) -> tuple[Named, Any]:
    """The arrays of a tree by their paths, `Dense_0.kernel`, and its structure."""
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [".".join(_key(part) for part in path if _key(part) != "value") for path, _ in found]
    for (_, array), name in zip(found, names, strict=True):
        if not jnp.issubdtype(getattr(array, "dtype", np.int64), jnp.floating):
            raise TypeError(f"its array {name} is not of floating-point numbers")
    return dict(zip(names, (array for _, array in found), strict=True)), structure


def _key(part: Any) -> str:
    """A step of a path: a key of a dictionary, an attribute or a place in a list."""
    for attribute in ("key", "name", "idx"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)


def _is_key(array: Any) -> bool:
    return bool(jnp.issubdtype(getattr(array, "dtype", np.int64), jax.dtypes.prng_key))


def _flops(function: Any, *given: Any) -> int:
    """Operations of a function, as XLA counts them before it fuses any."""
    found = jax.jit(function).lower(*given).cost_analysis() or {}
    one = found[0] if isinstance(found, (list, tuple)) else found
    flops = float(one.get("flops", 0.0))
    return int(flops) if math.isfinite(flops) else 0


def _saved_bytes(loss: Any, trained: Named, state: Named, x: jax.Array) -> int:
    """Bytes that the forward pass leaves for the backward pass, without arrays that exist
    anyway."""
    saved = jax.eval_shape(lambda p: jax.vjp(lambda own: loss(own, state, x), p)[1], trained)
    existing = Counter((tuple(a.shape), a.dtype) for a in (*trained.values(), *state.values(), x))
    total = 0
    for array in jax.tree.leaves(saved):
        kind = (tuple(array.shape), array.dtype)
        if existing[kind]:
            existing[kind] -= 1
        else:
            total += math.prod(array.shape) * np.dtype(array.dtype).itemsize
    return total
