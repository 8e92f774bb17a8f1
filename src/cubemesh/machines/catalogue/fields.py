"""Field access in a TOML text, with the line number of each field for error messages.

The standard library's parser gives values without line numbers; they are found by the table's
heading and the key. An invalid value is a DataError with file, line, field, the given value and the
allowed ones.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from cubemesh.errors import DataError
from cubemesh.untrusted import quoted

MOST_BYTES = 1 << 20
LEAST, MOST = 1e-9, 1e21
"""Smallest and largest rate, time or size: what is computed from them stays finite."""

_HEADING = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")


def read_toml(text: str, file: str) -> Fields:
    """Parse a TOML text; DataError with the line if it is not TOML."""
    if len(text) > MOST_BYTES:
        raise DataError(f"{file}: {len(text):,} characters; a machine file has {MOST_BYTES:,}.")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # the message ends in "(at line 3, column 5)"
        raise DataError(f"{file}: {error}.") from None
    except RecursionError:
        raise DataError(f"{file}: arrays or tables are nested too deeply.") from None
    except ValueError as error:  # a number of more than 4,300 digits, or no date
        raise DataError(f"{file}: {error}.") from None
    return Fields(values, file, text.splitlines())


class Fields:
    """One table of a TOML text; what does not fit is a DataError."""

    def __init__(
        self, values: Mapping[str, Any], file: str, lines: list[str], path: str = ""
    ) -> None:
        self.values, self.file, self.lines, self.path = values, file, lines, path

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def _below(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, why: str) -> NoReturn:
        """A DataError about a field, at the line of the table where the field is missing."""
        raise DataError(f"{self.file}, line {self._line(key)}, {self._below(key)}: {why}")

    def _line(self, key: str) -> int:
        """The line of a key of this table, else of the table's heading, else 1. For an array
        element (`pairs[3]`) that of the array."""
        key = key.partition("[")[0]
        table, heading, arrays = "", 1, Counter[str]()
        assignment = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*[=.]""")
        for number, line in enumerate(self.lines, start=1):
            found = _HEADING.match(line)
            if found:
                table = found[2].replace('"', "").replace("'", "")
                if found[1] == "[[":
                    arrays[table] += 1
                    table = f"{table}[{arrays[table] - 1}]"
                heading = number if table == self.path else heading
                if table == self._below(key):
                    return number
            elif table == self.path and assignment.match(line):
                return number
        return heading

    def only(self, known: Collection[str]) -> None:
        """DataError for an unknown key, with the nearest known one."""
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                allowed = f"nearest: {near[0]}" if near else f"known: {', '.join(known)}"
                self.wrong(key, f"unknown field; {allowed}.")

    def table(self, key: str) -> Fields | None:
        """A table below this one; None where it is missing."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, dict):
            self.wrong(key, f"is {quoted(value)} and must be a table, [{key}].")
        return Fields(value, self.file, self.lines, self._below(key))

    def tables(self, key: str) -> list[Fields]:
        """The elements of an array of tables; none where it is missing."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
            self.wrong(key, f"is {quoted(values)} and must be tables, [[{key}]].")
        path = self._below(key)
        return [Fields(v, self.file, self.lines, f"{path}[{i}]") for i, v in enumerate(values)]

    def text(self, key: str, default: str | None = None) -> str:
        """A non-empty string; `default` if the key is missing and there is one."""
        if key not in self.values and default is not None:
            return default
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, f"{self._given(key)} and must be a string.")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or more."""
        value = self.values.get(key)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(v, str) and v.strip() for v in value)
        ):
            self.wrong(key, f"{self._given(key)} and must be a list of at least one string.")
        return tuple(value)

    def whole(self, key: str, least: int, most: int = 1_000_000, default: int | None = None) -> int:
        """An integer within bounds."""
        if key not in self.values and default is not None:
            return default
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.wrong(
                key, f"{self._given(key)} and must be a whole number from {least} to {most:,}."
            )
        return value

    def maybe_whole(self, key: str, least: int, most: int = 1_000_000) -> int | None:
        """An integer within bounds; None if the key is missing."""
        return self.whole(key, least, most) if key in self.values else None

    def above_zero(self, key: str) -> float | None:
        """A number above zero; None where the key is missing."""
        if key not in self.values:
            return None
        value = self.values[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not LEAST <= value <= MOST:
            self.wrong(key, f"{self._given(key)} and must be a number from {LEAST:g} to {MOST:g}.")
        return float(value)

    def places(self, key: str, count: int, among: int, what: str) -> tuple[int, ...]:
        """`count` whole numbers, each the number of one of `among` things."""
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != count:
            self.wrong(key, f"{self._given(key)} and must list {count} numbers, one for each.")
        for position, place in enumerate(value):
            if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < among:
                self.wrong(
                    f"{key}[{position}]",
                    f"is {quoted(place)}; {what} are numbered 0 to {among - 1}.",
                )
        return tuple(value)

    def one_of(self, key: str, known: Collection[Any], default: Any = None) -> Any:
        """One of the values that are known."""
        if key not in self.values and default is not None:
            return default
        value = self.values.get(key)
        if isinstance(value, (dict, list)) or value not in known:
            names = ", ".join(map(str, known))
            near = difflib.get_close_matches(str(value)[:80], list(map(str, known)), n=1)
            hint = f" Nearest: {near[0]}." if near else ""
            self.wrong(key, f"{self._given(key)}; known: {names}.{hint}")
        return value

    def _given(self, key: str) -> str:
        return f"is {quoted(self.values[key])}" if key in self.values else "is missing"
