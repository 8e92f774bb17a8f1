"""Under which conditions was something measured? In a few words, for the heading of an answer.

Only what differs from the default is named, so that two answers about one network are told apart by
what they really differ in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from cubemesh.schema import Placement, ProgramSettings, RunRecord

_SPOKEN = {"data_location": "data on the {}", "script": "scripted", "threads": "{} threads"}
_BARE = ("framework", "precision", "layout", "device")


def conditions(records: Sequence[RunRecord]) -> str:
    """`bf16, nhwc, data on the device`: the settings of program and placement that all `records`
    share and that are not the defaults; empty where there are none."""
    words = []
    for part, usual in (("program", ProgramSettings()), ("placement", Placement())):
        for field in fields(usual):
            values = {getattr(getattr(r.spec, part), field.name) for r in records}
            if len(values) == 1 and (value := values.pop()) != getattr(usual, field.name):
                words.append(spoken(field.name, value))
    return ", ".join(words)


def titled(title: str, records: Sequence[RunRecord]) -> str:
    """`title` with the conditions of its records behind it."""
    under = conditions(records)
    return f"{title} · {under}" if under else title


def spoken(name: str, value: object) -> str:
    """A setting in words: `bf16`, `data on the device`, `optimizer adam`."""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    if name in _BARE:
        return str(value)
    if name == "threads" and value == 1:
        return "1 thread"
    return _SPOKEN.get(name, f"{name} {{}}").format(value)
