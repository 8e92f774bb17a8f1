"""Own data by name: data sets of the user's own that a command named, while it runs.

As with own networks (networks/own_networks.py), code of a user runs only where a command of the
user names it: a name with a colon is known only inside `named`, which a command enters with what it
was given; a store, a page and a queue know no such name. The planning process finds the file and
imports nothing; a worker imports it (`source.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cubemesh.errors import UsageError
from cubemesh.schema.own_network import OwnData
from cubemesh.user_code import locate, short_name

_named: dict[str, OwnData] = {}


def is_own(name: str) -> bool:
    """Whether `name` has the form of own data, `data.py:make` or `package.module:train`."""
    return ":" in name


def located(names: Iterable[str], *, elsewhere: bool = False) -> list[OwnData]:
    """The own data among `names`. UsageError for an invalid name or a missing file; a module may
    be missing if Python `elsewhere` imports it."""
    own = dict.fromkeys(name.strip() for name in names if is_own(name))
    found = (locate(name, "data", elsewhere=elsewhere) for name in own)
    return [OwnData(source=named.name, folder=named.folder) for named in found]


@contextmanager
def named(data: Iterable[OwnData]) -> Iterator[None]:
    """Within it these data can be used by name. UsageError for two of one name."""
    before = dict(_named)
    try:
        for own in data:
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


def find(name: str) -> OwnData | None:
    """The data that the command named so; None if it named none."""
    return _named.get(short_name(name))


def get(name: str) -> OwnData:
    """The data that the command named so; UsageError if it named none."""
    own = find(name)
    if own is None:
        raise UsageError(
            f"data={name} is data of your own, whose code runs only where a command names it: "
            "cubemesh run, tune or train. Give one of the data sets in docs/data.md."
        )
    return own


def is_named(own: OwnData) -> bool:
    """Whether this command named exactly these data."""
    return _named.get(own.name) == own
