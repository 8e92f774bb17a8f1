"""Sweeps: a setting with several values becomes a job for each combination.

`learning_rate=0.1,0.01` is a sweep where the setting takes one number, word or switch. Where it
takes a list, or any text, a comma is part of the value, and `--sweep KEY=V1,V2` names a sweep.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import spec_fields, split
from cubemesh.experiments.session import resolve
from cubemesh.schema.serialization import field_types

MOST_JOBS = 200
"""Most jobs of one sweep."""


def combinations(
    names: Sequence[str], settings: Iterable[str], sweep: Iterable[str] = ()
) -> list[tuple[str, ...]]:
    """The lines of settings of each job, in order; one where nothing is swept. UsageError for a
    sweep without values, or of more than `MOST_JOBS` jobs."""
    texts, swept = split(settings), split(sweep, "--sweep")
    kinds = _kinds(names)
    axes: dict[str, list[str]] = {}
    for key, text in texts.items():
        if key in swept:
            raise UsageError(
                f"{key} is given twice: --set {key}={text} and --sweep {key}={swept[key]}. "
                "Leave one out."
            )
        several = "," in text and key in kinds and all(map(_takes_one, kinds[key]))
        axes[key] = _values(key, text) if several else [text]
    axes |= {key: _values(key, text) for key, text in swept.items()}
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_JOBS:
        raise UsageError(
            f"The sweep has {count:,} jobs, and at most {MOST_JOBS} are allowed. Give fewer values."
        )
    keys = list(axes)
    return [
        tuple(f"{key}={value}" for key, value in zip(keys, chosen, strict=True))
        for chosen in itertools.product(*axes.values())
    ]


def _values(key: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(",")]
    if not all(values) or len(set(values)) < len(values):
        raise UsageError(
            f"{key}={text}: a value of the sweep is empty or given twice. Write different values "
            f"between commas, as in --sweep {key}=1,2."
        )
    return values


def _kinds(names: Sequence[str]) -> dict[str, list[Any]]:
    """Setting → its types in the experiments that have it."""
    found: dict[str, list[Any]] = {}
    for planned in resolve(names, (), None):
        experiment = planned.experiment
        own = field_types(experiment.settings)
        for key, kind in {**spec_fields(experiment), **own}.items():
            found.setdefault(key, []).append(kind)
    return found


def _takes_one(kind: Any) -> bool:
    """Whether a value is one number, word or switch, in which no comma can be."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    members = typing.get_args(kind) if union else (kind,)
    single = (int, float, bool, type(None))
    return all(m in single or typing.get_origin(m) is typing.Literal for m in members)
