"""Titles of the answers of one page: two that are equal get what differs between their runs.

Answers of one experiment with other settings have one title otherwise, and a reader, a contents
list and a message of the audit could not distinguish them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cubemesh.schema import Answer, RunRecord
from cubemesh.store.select import format_value, settings_of

Answered = tuple[Answer, Sequence[RunRecord]]

_NAMES = {"network": "", "batch_per_device": "batch size", "hidden": "hidden size"}
"""Settings that are compared first → their names in a title."""
_MOST_VALUES = 3


def distinct_titles(answered: Sequence[Answered]) -> list[Answered]:
    """The answers with titles that occur once in each experiment: `Weak scaling · alexnet` where
    the networks differ, otherwise the batch sizes, another setting, the date, or the number of the
    answer."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, (answer, _) in enumerate(answered):
        groups.setdefault((answer.experiment, answer.title), []).append(i)
    found = list(answered)
    for indices in groups.values():
        if len(indices) < 2:
            continue
        for i, words in zip(indices, _differences([found[i][1] for i in indices]), strict=True):
            answer, records = answered[i]
            title = " · ".join(filter(None, (answer.title, words)))
            found[i] = replace(answer, title=title), records
    return found


def _differences(runs: Sequence[Sequence[RunRecord]]) -> list[str]:
    """What distinguishes the runs of each answer from those of the others."""
    own = [_values(records) for records in runs]
    names = dict.fromkeys((*_NAMES, *(name for values in own for name in values)))
    for name in names:
        words = [_words(name, values.get(name, [])) for values in own]
        if len(set(words)) == len(words):
            return words
    days = [day_of(records) for records in runs]
    return days if len(set(days)) == len(days) else [str(i) for i in range(1, len(runs) + 1)]


def _values(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The values of each setting of these runs, in their order."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in settings_of(record).items():
            if value is not None:
                found.setdefault(name, {})[format_value(value)] = None
    return {name: list(values) for name, values in found.items()}


def _words(name: str, values: Sequence[str]) -> str:
    if not values:
        return ""
    listed = ", ".join(values[:_MOST_VALUES]) + (", …" if len(values) > _MOST_VALUES else "")
    return f"{_NAMES.get(name, name.replace('_', ' '))} {listed}".strip()


def day_of(records: Iterable[RunRecord]) -> str:
    """The day of the latest of these runs, `21 Nov 2026`; empty without runs."""
    latest = max((record.started_utc[:10] for record in records), default="")
    try:
        day = datetime.date.fromisoformat(latest)
    except ValueError:
        return latest
    return f"{day.day} {day:%b %Y}"
