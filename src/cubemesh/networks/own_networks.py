"""Own networks by name: those that a command named, while it runs.

Code of a user runs only where a command of the user names it. A name with a colon is therefore
known only inside `named`, which a command enters with the descriptions of what it was given; a
store, a page and a queue know no such name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cubemesh.errors import UsageError
from cubemesh.networks.graph import Network
from cubemesh.networks.graph_text import from_text
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.user_code import short_name

_named: dict[str, OwnNetwork] = {}


def is_own(name: str) -> bool:
    """Whether `name` has the form of an own network, `model.py:Net` or `package.module:build`, and
    not that of a transformer by its sizes, `gpt:hidden=4096`."""
    return ":" in name and "=" not in name


@contextmanager
def named(networks: Iterable[OwnNetwork]) -> Iterator[None]:
    """Within it these networks can be built by name. UsageError for two of one name."""
    before = dict(_named)
    try:
        for own in networks:
            other = _named.setdefault(own.name, own)
            if other != own:
                raise UsageError(
                    f"{other.source} and {own.source} have the same name, {own.name}. Rename a "
                    "file, or measure them in two commands."
                )
        yield
    finally:
        _named.clear()
        _named.update(before)


def find(name: str) -> OwnNetwork | None:
    """The network that the command named so; None if it named none."""
    return _named.get(short_name(name))


def get(name: str) -> OwnNetwork:
    """The network that the command named so; UsageError if it named none."""
    own = find(name)
    if own is None:
        raise UsageError(
            f"network={name} is a network of your own, whose code runs only where a command names "
            "it: cubemesh run, tune, train, predict or networks. Give one of those that "
            "`cubemesh networks` lists."
        )
    return own


def is_named(own: OwnNetwork) -> bool:
    """Whether this command named exactly this network."""
    return _named.get(own.name) == own


@functools.lru_cache(maxsize=32)
def network_of(own: OwnNetwork) -> Network:
    """The network of a description; DataError where it is damaged."""
    return from_text(own)
