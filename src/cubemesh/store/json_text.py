"""JSON text of dataclasses, exact for every float.

It is strict JSON, readable by SQL (`json_extract`). Infinity and not-a-number, which JSON lacks,
are written as `{"$float": "NaN"}`.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

from cubemesh.errors import CubemeshError, StoreError
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.store.damage import reason_of

T = TypeVar("T")

UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    CubemeshError,
)
"""What JSON of another shape, too deep or with impossible values raises."""
_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_text(noun: Any) -> str:
    """The JSON of a noun, in ASCII."""
    return json.dumps(_encoded(to_plain(noun)), allow_nan=False, separators=(",", ":"))


def from_text(kind: type[T], text: str, what: str) -> T:
    """The noun that `to_text` wrote. StoreError, naming `what`, when it is of a shape that this
    cubemesh does not know."""
    try:
        return from_plain(kind, json.loads(text, object_hook=_decoded))
    except UNREADABLE as error:
        raise StoreError(
            f"{what} cannot be read ({reason_of(error)}). It is damaged, or was stored by a "
            "newer cubemesh: upgrade this one."
        ) from error


def _encoded(plain: Any) -> Any:
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"$float": "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"}
    if isinstance(plain, dict):
        return {key: _encoded(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_encoded(value) for value in plain]
    return plain


def _decoded(table: dict[str, Any]) -> Any:
    name = table.get("$float")
    return _NAMES[name] if len(table) == 1 and name in _NAMES else table
