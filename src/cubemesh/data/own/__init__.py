"""Own data by name: data sets that a command named, while it runs (`NamedCode` of user_code.py).

The planning process finds the file and imports nothing; a worker imports it (`source.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from cubemesh.schema.own_network import OwnData
from cubemesh.user_code import NamedCode, locate

_NAMED = NamedCode[OwnData](
    "data={name} is data of your own, whose code runs only where a command names it: cubemesh run, "
    "tune or train. Give one of the data sets in docs/data.md."
)
named, find, get, is_named = _NAMED.named, _NAMED.find, _NAMED.get, _NAMED.is_named


def is_own(name: str) -> bool:
    """Whether `name` has the form of own data, `data.py:make` or `package.module:train`."""
    return ":" in name


def located(names: Iterable[str], *, elsewhere: bool = False) -> list[OwnData]:
    """The own data among `names`. UsageError for an invalid name or a missing file; a module may
    be missing if Python `elsewhere` imports it."""
    own = dict.fromkeys(name.strip() for name in names if is_own(name))
    found = (locate(name, "data", elsewhere=elsewhere) for name in own)
    return [OwnData(source=code.name, folder=code.folder) for code in found]
