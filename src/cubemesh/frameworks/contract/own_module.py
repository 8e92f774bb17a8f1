"""Own module: what its description is made from and of, whichever framework it is of.

The process that describes (worker/describe.py) imports the object, finds its framework by its type
(`framework_of`) and asks that framework for the description.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cubemesh import user_code
from cubemesh.batches import Array
from cubemesh.networks.assembly import Assembly
from cubemesh.networks.graph_text import to_text
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.own_network import OwnFramework, OwnNetwork
from cubemesh.user_code import Recognizer, UserCodeError, UserObject, attempt, digest

SAMPLES = 2
"""Of the description: batch normalization needs two."""
DIGITS = 3
"""Significant digits of the initial values' deviation, so that rounding changes no spec."""
IMAGE = (3, 224, 224)
"""Input of a module where none is given."""
MOST_NUMBERS = 1 << 26
"""Of one sample of an input."""
TYPES: Mapping[OwnFramework, tuple[str, ...]] = {
    "keras": ("keras.Layer",),
    "jax": ("flax.linen.Module", "flax.nnx.Module"),
    "pytorch": ("torch.nn.Module",),
}
"""Framework → its types of modules. Keras's first: on PyTorch its layers are modules of both."""
TITLES: Mapping[OwnFramework, str] = {
    "pytorch": "a PyTorch module",
    "jax": "a Flax module",
    "keras": "a Keras model",
}


@dataclass(frozen=True, kw_only=True)
class DescriptionRequest:
    """What to describe."""

    named: UserObject
    input_shape: tuple[int, ...] | None = None
    """Of one sample: (channels, height, width), or (length,) of tokens; None: that of the file, or
    `IMAGE`."""
    vocabulary: int | None = None
    """Of tokens; None for images, or where the file has it."""
    image_size: int | None = None
    """Where the input is that of the file: side of its images."""
    sequence_length: int | None = None
    """Where the input is that of the file: its tokens."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return IMAGE if self.input_shape is None else self.input_shape

    @property
    def input_name(self) -> str:
        """Name of the input in the graph."""
        return "image" if self.vocabulary is None else "tokens"

    @property
    def shown_input(self) -> str:
        """`images of 3×32×32`, `128 tokens`."""
        shown = "×".join(map(str, self.shape))
        return f"images of {shown}" if self.vocabulary is None else f"{shown} tokens"

    def check_size(self) -> None:
        """UserCodeError for an input that is too large to be run."""
        if math.prod(self.shape) > MOST_NUMBERS:
            raise UserCodeError(
                f"{self.named.short} takes {self.shown_input}, and an input has at most "
                f"{MOST_NUMBERS:,} numbers."
            )

    def samples(self) -> Array:
        """Random samples of its input, channels first: float32, or int64 of tokens. UserCodeError
        as of `check_size`."""
        self.check_size()
        random = np.random.default_rng(0)
        shape = (SAMPLES, *self.shape)
        if self.vocabulary is None:
            return random.random(shape, np.float32)
        return random.integers(self.vocabulary, size=shape, dtype=np.int64)


def make(named: UserObject, is_out_of_memory: Recognizer | None = None) -> Any:
    """The module that an object of the user's code is, or returns; PyTorch's seed is 0.
    UserCodeError where that fails."""
    found = user_code.load(named, is_out_of_memory)
    if framework_of(found) is not None:
        return found
    if not callable(found):
        raise UserCodeError(
            f"{named.short} is of type {type(found).__name__}. Name a torch.nn.Module, a Flax "
            "module or a Keras model, or a class or function without arguments that returns one."
        )
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    call: Callable[..., Any] = found
    nnx = _type("flax.nnx.Module")
    if isinstance(found, type) and nnx is not None and issubclass(found, nnx):
        rngs = sys.modules["flax.nnx"].Rngs(0)
        call = functools.partial(call, rngs=rngs)
    return attempt(named, "building it", call, is_out_of_memory)


def framework_of(found: Any) -> OwnFramework | None:
    """The framework of a module; None where it is none. Nothing is imported for that."""
    for framework, names in TYPES.items():
        for name in names:
            kind = _type(name)
            if kind is not None and isinstance(found, kind):
                return framework
    return None


def _type(name: str) -> type | None:
    """A class of a module that is imported already."""
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    return found if isinstance(found, type) else None


def of_framework(named: UserObject, found: Any, framework: OwnFramework) -> Any:
    """`found`, if it is a module of this framework; else UserCodeError."""
    if framework_of(found) != framework:
        raise UserCodeError(
            f"{named.short} returned an object of type {type(found).__name__}, and "
            f"{TITLES[framework]} is needed."
        )
    return found


def check_unchanged(own: OwnNetwork) -> UserObject:
    """What a description was made of. UserCodeError where it could not be run, or its files are no
    longer those that were described."""
    if own.fault:
        raise UserCodeError(own.fault)
    named = UserObject(name=own.source, folder=own.folder)
    if digest(named) != own.digest:
        raise UserCodeError(
            f"{own.name}: its source changed after the command began. Run the command again."
        )
    return named


def faulty(request: DescriptionRequest, fault: str) -> OwnNetwork:
    """The description of a module that cannot be run."""
    named, graph = request.named, opaque_text(request, Opaque(output=(1,)), {})
    return OwnNetwork(source=named.name, folder=named.folder, graph=graph, fault=fault)


def opaque_text(request: DescriptionRequest, layer: Opaque, arrays: Mapping[str, Array]) -> str:
    """The text of a graph of one layer, with the initial values of its arrays."""
    net = Assembly(request.named.short)
    x = net.input(request.input_name, request.shape, vocabulary=request.vocabulary)
    net.classify(net.add_layer(layer, x, name="module"))
    return to_text(net.build(), {f"module.{n}": moments(a) for n, a in arrays.items()})


def opaque_description(
    request: DescriptionRequest,
    framework: OwnFramework,
    layer: Opaque,
    arrays: Mapping[str, Array],
    untraced: str = "",
) -> OwnNetwork:
    """The description of a module as one layer, with the initial values of its arrays; `untraced`:
    why it is no graph of layers, by default its framework."""
    named = request.named
    return OwnNetwork(
        source=named.name,
        folder=named.folder,
        digest=digest(named),
        graph=opaque_text(request, layer, arrays),
        untraced=untraced
        or f"it is {TITLES[framework]}, and only modules of PyTorch are traced to layers",
        framework=framework,
    )


def scores_in(result: Any, kinds: type | tuple[type, ...], noun: str) -> Any:
    """The scores in a module's result: the result itself, `logits` of a dictionary or an object, or
    the first of several. TypeError where there is no array of one of `kinds`, called `noun`."""
    if isinstance(result, kinds):
        return result
    if isinstance(result, Mapping):
        found = result.get("logits")
    elif isinstance(result, (tuple, list)) and result and not hasattr(result, "logits"):
        found = result[0]
    else:
        found = getattr(result, "logits", None)
    if not isinstance(found, kinds):
        raise TypeError(f"it returned {type(result).__name__} instead of {noun} of scores")
    return found


def check_trained(request: DescriptionRequest, trained: Collection[object]) -> None:
    """UserCodeError for a module without parameters that its scores depend on."""
    if not trained:
        raise UserCodeError(f"{request.named.short} has no parameter that its scores depend on.")


def check_scores(request: DescriptionRequest, shape: tuple[int, ...], *, floating: bool) -> None:
    """UserCodeError unless what a module returned for `SAMPLES` samples are scores."""
    if len(shape) not in (2, 3) or shape[0] != SAMPLES or not floating:
        raise UserCodeError(
            f"{request.named.short}: running it on {request.shown_input}, {SAMPLES} a batch, "
            f"returned values of shape {shape}, and scores of shape (batch, classes) or (batch, "
            "positions, classes) are needed."
        )


def moments(values: Array) -> tuple[float, float]:
    """Mean and deviation of initial values: the mean of a constant, or where it is no noise."""
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    deviation = float(values.std()) if values.size > 1 else 0.0
    if deviation <= 1e-6 * abs(mean) or values.size == 1:
        return _rounded(mean), 0.0
    noise = 4 * deviation / math.sqrt(values.size)
    return (_rounded(mean) if abs(mean) > noise else 0.0), _rounded(deviation)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
