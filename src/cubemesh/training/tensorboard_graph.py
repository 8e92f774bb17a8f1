"""A network as TensorBoard's graph page draws it: a `GraphDef` of TensorFlow.

    GraphDef: node = 1, versions = 4 { producer = 1 }
    NodeDef:  name = 1, op = 2, input = 3, attr = 5 { key = 1, value = 2 }
    AttrValue: list = 1 { shape = 7 }, s = 2      TensorShapeProto: dim = 2 { size = 1 }

(tensorflow/core/framework/graph.proto and those it imports.) A node is a layer, its operation the
layer's type; dots in names become slashes, by which the page folds groups. Settings, parameters and
the shape of the result (its first axis is the minibatch, of any length) are attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cubemesh.networks.graph import Input, Network, Node
from cubemesh.networks.layers import Shape
from cubemesh.training import protobuf

_PRODUCER = 22
"""The oldest version of graphs whose readers are still in use."""
_ANY = -1


def graph_def(network: Network) -> bytes:
    """The message for `network`: its inputs, then its layers in the order they run."""
    inputs = b"".join(protobuf.message(1, _input(i)) for i in network.inputs)
    layers = b"".join(protobuf.message(1, _layer(node, network)) for node in network.nodes)
    return inputs + layers + protobuf.message(4, protobuf.varint(1, _PRODUCER))


def _input(given: Input) -> bytes:
    return _node(given.name, "Placeholder", (), given.shape, {})


def _layer(node: Node, network: Network) -> bytes:
    shown = {field.name: str(value) for field, value in _settings(node)}
    for role, name in node.parameters.items():
        shape = "×".join(map(str, network.parameters[name].shape))
        shown[role] = f"{name} ({shape})"
    return _node(node.name, type(node.layer).__name__, node.inputs, node.shape, shown)


def _settings(node: Node) -> list[tuple[dataclasses.Field[object], object]]:
    return [(field, getattr(node.layer, field.name)) for field in dataclasses.fields(node.layer)]


def _node(
    name: str, operation: str, inputs: tuple[str, ...], shape: Shape, shown: Mapping[str, str]
) -> bytes:
    read = b"".join(protobuf.text(3, _path(value)) for value in inputs)
    attributes = [_attribute(key, protobuf.text(2, value)) for key, value in shown.items()]
    sizes = b"".join(protobuf.message(2, protobuf.varint(1, size)) for size in (_ANY, *shape))
    attributes.append(_attribute("_output_shapes", protobuf.message(1, protobuf.message(7, sizes))))
    return protobuf.text(1, _path(name)) + protobuf.text(2, operation) + read + b"".join(attributes)


def _attribute(key: str, value: bytes) -> bytes:
    return protobuf.message(5, protobuf.text(1, key) + protobuf.message(2, value))


def _path(name: str) -> str:
    return name.replace(".", "/")
