"""Own networks by name: those that a command named, while it runs (`NamedCode` of user_code.py).

A command enters `named` with the descriptions of what it was given.
"""

from __future__ import annotations

import functools

from cubemesh.networks.graph import Network
from cubemesh.networks.graph_text import from_text
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import NamedCode, form_of

_NAMED = NamedCode[OwnNetwork](
    "network={name} is a network of your own, whose code runs only where a command names it: "
    "cubemesh run, tune, train, predict or networks. Give one of those that `cubemesh networks` "
    "lists."
)
named, find, get, is_named = _NAMED.named, _NAMED.find, _NAMED.get, _NAMED.is_named


def is_own(name: str) -> bool:
    """Whether `name` has the form of an own network, `model.py:Net`, `package.module:build`,
    `model.onnx` or `folder/`, and not that of a transformer by its sizes, `gpt:hidden=4096`."""
    return form_of(name) != "python" or (":" in name and "=" not in name)


@functools.lru_cache(maxsize=32)
def network_of(own: OwnNetwork) -> Network:
    """The network of a description; DataError where it is damaged."""
    return from_text(own)
