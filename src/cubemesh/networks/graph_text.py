"""Graph of an own network as JSON text, and back.

    {"inputs": [{"name": "image", "shape": [3, 32, 32]}], "output": "fc",
     "nodes": [["conv1", "convolution", {"filters": 8, "kernel": [3, 3]}, ["image"], "stem"], …],
     "arrays": {"conv1.weight": [0.0, 0.12], …}}

A node is its name, layer type, settings without defaults, inputs, segment and, where it has some,
shared parameters by role; `arrays` has mean and deviation of the initial values of each array.
Shapes and names of parameters follow from the layers, as in `assembly.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cubemesh.errors import DataError, UsageError
from cubemesh.networks.assembly import Assembly
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import ALL_LAYERS, Initializer, Layer, ParameterSpec
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.untrusted import parse_json

TYPES: Mapping[str, type[Layer]] = {**ALL_LAYERS, "module": Opaque}
"""Layer types by their names in the text."""
_NAMES = {kind: name for name, kind in TYPES.items()}
Arrays = Mapping[str, tuple[float, float]]
"""Parameter or state array → mean and deviation of its initial values."""


def to_text(network: Network, arrays: Arrays) -> str:
    """The text of a network with one head."""
    nodes = [
        [
            node.name,
            _NAMES[type(node.layer)],
            _settings(node.layer),
            list(node.inputs),
            node.segment,
            *_shared(node),
        ]
        for node in network.nodes
    ]
    inputs = [to_plain(one, defaults=False) for one in network.inputs]
    text = {"inputs": inputs, "output": network.output, "nodes": nodes, "arrays": dict(arrays)}
    return json.dumps(text, separators=(",", ":"))


def from_text(own: OwnNetwork) -> Network:
    """The network of a description. DataError where the text is damaged."""
    try:
        return _network(own, parse_json(own.graph))
    except (LookupError, TypeError, ValueError, UsageError) as error:
        raise DataError(f"the description of {own.name} is damaged: {error}") from error


def _network(own: OwnNetwork, plain: Any) -> Network:
    net = Assembly(own.name)
    for one in plain["inputs"]:
        net.input(one["name"], _shape(one["shape"]), vocabulary=one.get("classes"))
    for name, kind, settings, inputs, segment, *share in plain["nodes"]:
        layer = from_plain(TYPES[kind], settings)
        if isinstance(layer, Opaque):
            layer = replace(layer, own=own)
        with _segment(net, segment):
            net.add_layer(layer, *inputs, name=name, share=share[0] if share else None)
    net.classify(plain["output"])
    network = net.build()
    arrays = {name: _initializer(*values) for name, values in plain["arrays"].items()}
    return replace(
        network,
        parameters=_with(network.parameters, arrays),
        state=_with(network.state, arrays),
    )


def _shared(node: Node) -> list[dict[str, str]]:
    share = {r: name for r, name in node.parameters.items() if name != f"{node.name}.{r}"}
    return [share] if share else []


def _settings(layer: Layer) -> Any:
    settings = to_plain(layer, defaults=False)
    return {n: value for n, value in settings.items() if n != "own" and "initializer" not in n}


@contextmanager
def _segment(net: Assembly, name: str) -> Iterator[None]:
    if not name:
        yield
        return
    with net.segment(name):
        yield


def _shape(values: list[Any]) -> tuple[int, ...]:
    return from_plain(tuple[int, ...], values)


def _initializer(mean: float, deviation: float) -> Initializer:
    return Initializer(kind="normal", scale=float(deviation), mean=float(mean))


def _with(
    specs: Mapping[str, ParameterSpec], arrays: Mapping[str, Initializer]
) -> dict[str, ParameterSpec]:
    return {
        name: replace(spec, initializer=arrays.get(name, spec.initializer))
        for name, spec in specs.items()
    }
