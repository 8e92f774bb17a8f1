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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from cubemesh.untrusted import MOST_INTEGER, quoted

T = TypeVar("T")
_Reader = Callable[[Any], Any]
"""Makes a value of plain data; raises _Misfit."""
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _cached(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Of a function of a type, whose value is made once for each."""
    return functools.cache(function)


class _Misfit(ValueError):
    """Plain data that do not fit, with where that is below the value being read."""

    def __init__(self, text: str, where: str = "") -> None:
        self.problems: list[tuple[str | None, str]] = [(where, text)]
        """(where, what); without a place for what the value's own checks say."""

    def below(self, step: str) -> _Misfit:
        """The same, seen from one level above."""
        self.problems = [(w if w is None else step + w, text) for w, text in self.problems]
        return self

    def sentence(self, root: str) -> str:
        """What does not fit, and where."""
        return "; ".join(text if w is None else f"{root}{w}: {text}" for w, text in self.problems)


@_cached
def _plain_fields(kind: type[Any]) -> tuple[tuple[str, dataclasses.Field[Any]], ...] | None:
    """The fields of a dataclass by name; None for another type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((field.name, field) for field in dataclasses.fields(kind))


def to_plain(value: Any, *, defaults: bool = True) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None.

    With `defaults=False` every dataclass field equal to its default is left out, except `kind`.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    fields = _plain_fields(kind)
    if fields is not None:
        return {
            name: to_plain(getattr(value, name), defaults=defaults)
            for name, field in fields
            if defaults or name == "kind" or not _holds_default(value, field)
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
    try:
        return cast(T, _reader(kind)(data))
    except _Misfit as misfit:
        raise ValueError(misfit.sentence(kind.__name__)) from None


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


@_cached
def _reader(kind: Any) -> _Reader:
    """What reads values of a type; made once for each type."""
    if kind is Any:
        return lambda data: data
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(cast(type, kind))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(arguments)
    if origin is typing.Literal:
        return _choice_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(arguments[1])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_reader(kind)
    return _scalar_reader(kind)


def _scalar_reader(kind: type[Any]) -> _Reader:
    def read(data: Any) -> Any:
        found = type(data)
        if found is kind and found is not int:
            return data
        if isinstance(data, int) and abs(data) >= MOST_INTEGER:
            raise _Misfit(quoted(data))
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
            raise _Misfit(f"{quoted(data)} is not {kind.__name__}")
        return data

    return read


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(data: Any) -> Any:
        if data not in choices:
            raise _Misfit(f"{quoted(data)} is not one of {', '.join(map(repr, choices))}")
        return data

    return read


def _enum_reader(kind: type[enum.Enum]) -> _Reader:
    values = [member.value for member in kind]

    def read(data: Any) -> Any:
        if data not in values:
            known = ", ".join(str(value) for value in values)
            raise _Misfit(f"{quoted(data)} is not one of {known}")
        return kind(data)

    return read


def _mapping_reader(of: Any) -> _Reader:
    read_value = _reader(of)

    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _Misfit(f"{quoted(data)} is not a table")
        key = ""
        found = {}
        try:
            for key, value in data.items():
                found[key] = read_value(value)
        except _Misfit as misfit:
            raise misfit.below(f".{key}") from None
        return found

    return read


def _dataclass_reader(kind: type[Any]) -> _Reader:
    required = _required(kind)

    @functools.cache  # made at the first use: a type may hold values of its own type
    def field_readers() -> dict[str, _Reader]:
        return {name: _reader(of) for name, of in field_types(kind).items()}

    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _Misfit(f"{quoted(data)} is not a table of {kind.__name__}'s fields")
        readers = field_readers()
        if not readers.keys() >= data.keys():
            unknown = min(map(str, set(data) - set(readers)))
            raise _Misfit(f"unknown field {quoted(unknown)}; known: {', '.join(readers)}")
        if not required <= data.keys():
            raise _Misfit(f"the field {min(required - set(data))!r} is missing")
        name = ""
        found = {}
        try:
            for name, value in data.items():
                found[name] = readers[name](value)
        except _Misfit as misfit:
            raise misfit.below(f".{name}") from None
        return kind(**found)

    return read


@_cached
def _required(kind: type[Any]) -> frozenset[str]:
    """The fields of a dataclass that have no default."""
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.init and field.default is field.default_factory is dataclasses.MISSING
    )


def _union_reader(arguments: tuple[Any, ...]) -> _Reader:
    nullable = type(None) in arguments
    members = [a for a in arguments if a is not type(None)]
    kinds = {_kind_of(m): _reader(m) for m in reversed(members) if dataclasses.is_dataclass(m)}
    readers = [_reader(member) for member in members]

    def read(data: Any) -> Any:
        if data is None and nullable:
            return None
        if isinstance(data, Mapping) and "kind" in data:
            if isinstance(data["kind"], str) and data["kind"] in kinds:
                return kinds[data["kind"]](data)
            known = ", ".join(str(_kind_of(m)) for m in members)
            raise _Misfit(f"unknown kind {quoted(data['kind'])}; known: {known}")
        misfit = _Misfit("")
        misfit.problems = []
        for read_member in readers:
            try:
                return read_member(data)
            except _Misfit as error:
                misfit.problems += error.problems
            except ValueError as error:
                misfit.problems.append((None, str(error)))
        raise misfit

    return read


def _kind_of(member: Any) -> Any:
    return next((f.default for f in dataclasses.fields(member) if f.name == "kind"), None)


def _tuple_reader(arguments: tuple[Any, ...]) -> _Reader:
    many = len(arguments) == 2 and arguments[1] is Ellipsis
    readers = [_reader(a) for a in (arguments[:1] if many else arguments)]

    def read(data: Any) -> Any:
        if not isinstance(data, (list, tuple)):
            raise _Misfit(f"{quoted(data)} is not a list")
        if not many and len(readers) != len(data):
            raise _Misfit(f"{len(data)} values where {len(readers)} belong")
        found: list[Any] = []
        try:
            for read_item, item in zip(readers * len(data) if many else readers, data, strict=True):
                found.append(read_item(item))
        except _Misfit as misfit:
            raise misfit.below(f"[{len(found)}]") from None
        return tuple(found)

    return read
