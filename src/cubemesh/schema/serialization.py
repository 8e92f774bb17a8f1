"""Serialization of dataclasses to plain JSON data and back.

`to_plain` leaves out fields that hold their default when asked to, which is what makes an id
independent of fields added later; `from_plain` rebuilds the dataclass from its type hints alone.
The members of a union are distinguished by their field `kind`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from cubemesh.untrusted import MOST_INTEGER, quoted

T = TypeVar("T")


def to_plain(value: Any, *, defaults: bool = True) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None.

    With `defaults=False` every dataclass field equal to its default is left out, except `kind`.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_plain(getattr(value, f.name), defaults=defaults)
            for f in dataclasses.fields(value)
            if defaults or f.name == "kind" or not _holds_default(value, f)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, defaults=defaults) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v, defaults=defaults) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: type[T], data: Any) -> T:
    """The `kind` that `data` (from `to_plain`) describes.

    Raises ValueError naming the field when a key is unknown, one without a default is missing, or
    a value does not fit its type. Others that are missing take their defaults, so older data stays
    readable.
    """
    return cast(T, _build(kind, data, kind.__name__))


def canonical_json(value: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, defaults left out, 5.0 written as 5."""
    plain = _whole(to_plain(value, defaults=False))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _whole(plain: Any) -> Any:
    """Plain data with whole floats as integers: equal specs must have one id."""
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    if isinstance(plain, dict):
        return {k: _whole(v) for k, v in plain.items()}
    return [_whole(v) for v in plain] if isinstance(plain, list) else plain


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hexadecimal digits of SHA-256 over the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def _holds_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(getattr(value, field.name) == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(getattr(value, field.name) == field.default_factory())
    return False


_FIELD_TYPES: dict[type, dict[str, Any]] = {}


def field_types(kind: type[Any]) -> dict[str, Any]:
    """The resolved type of every field of a dataclass, by name."""
    if kind not in _FIELD_TYPES:
        hints = typing.get_type_hints(kind)
        _FIELD_TYPES[kind] = {f.name: hints[f.name] for f in dataclasses.fields(kind)}
    return _FIELD_TYPES[kind]


def _build(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(cast(type, kind), data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _build_union(arguments, data, where)
    if origin is typing.Literal:
        if data not in arguments:
            known = ", ".join(map(repr, arguments))
            raise ValueError(f"{where}: {quoted(data)} is not one of {known}")
        return data
    if origin is tuple:
        return _build_tuple(arguments, data, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise ValueError(f"{where}: {quoted(data)} is not a table")
        return {k: _build(arguments[1], v, f"{where}.{k}") for k, v in data.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if data not in [member.value for member in kind]:
            known = ", ".join(str(member.value) for member in kind)
            raise ValueError(f"{where}: {quoted(data)} is not one of {known}")
        return kind(data)
    if isinstance(data, int) and abs(data) >= MOST_INTEGER:
        raise ValueError(f"{where}: {quoted(data)}")
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise ValueError(f"{where}: {quoted(data)} is not {kind.__name__}")
    return data


def _build_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: {quoted(data)} is not a table of {kind.__name__}'s fields")
    hints = field_types(kind)
    unknown = sorted(map(str, set(data) - set(hints)))
    if unknown:
        raise ValueError(f"{where}: unknown field {quoted(unknown[0])}; known: {', '.join(hints)}")
    if missing := sorted(_required(kind) - set(data)):
        raise ValueError(f"{where}: the field {missing[0]!r} is missing")
    return kind(**{k: _build(hints[k], v, f"{where}.{k}") for k, v in data.items()})


@functools.cache
def _required(kind: type[Any]) -> frozenset[str]:
    """The fields of a dataclass that have no default."""
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.init and field.default is field.default_factory is dataclasses.MISSING
    )


def _build_union(arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    members = [a for a in arguments if a is not type(None)]
    if isinstance(data, Mapping) and "kind" in data:
        for member in members:
            if dataclasses.is_dataclass(member) and _kind_of(member) == data["kind"]:
                return _build(member, data, where)
        known = ", ".join(str(_kind_of(m)) for m in members)
        raise ValueError(f"{where}: unknown kind {quoted(data['kind'])}; known: {known}")
    problems = []
    for member in members:
        try:
            return _build(member, data, where)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; ".join(problems))


def _kind_of(member: Any) -> Any:
    return next((f.default for f in dataclasses.fields(member) if f.name == "kind"), None)


def _build_tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise ValueError(f"{where}: {quoted(data)} is not a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_build(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if len(arguments) != len(data):
        raise ValueError(f"{where}: {len(data)} values where {len(arguments)} belong")
    return tuple(
        _build(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(arguments, data, strict=True))
    )
