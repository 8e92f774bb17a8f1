"""What a dataclass's fields are, in words: their types, defaults and the lines written under them.

What is said under a field in the code is what the user reads, so nothing is written twice.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from typing import Any

from cubemesh.schema.serialization import field_types, to_plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldWords:
    """One field, ready to be shown."""

    name: str
    type: str
    default: Any
    """As plain data; None where there is none."""
    means: str


def describe_fields(kind: type[Any]) -> dict[str, FieldWords]:
    """Every field of a dataclass but its `kind`, in order, by name."""
    hints, lines = field_types(kind), _docs(kind)
    return {
        f.name: FieldWords(
            name=f.name,
            type=type_words(hints[f.name]),
            default=None if f.default is dataclasses.MISSING else to_plain(f.default),
            means=lines.get(f.name, ""),
        )
        for f in dataclasses.fields(kind)
        if f.name != "kind"
    }


def type_words(kind: Any) -> str:
    """A type as a user would write its values: `cpu | cuda`, `integer`, `integer,integer,…`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_words(a) for a in arguments if a is not type(None))
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        one = type_words(arguments[0])
        return f"{one},{one},…"
    words = {int: "integer", float: "number", str: "text", bool: "true | false"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def _docs(kind: type[Any]) -> dict[str, str]:
    """The string under each field, of the class and of those it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, line in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = line.value if isinstance(line, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[field.target.id] = " ".join(text.value.split())
    return found
