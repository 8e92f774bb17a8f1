"""Arguments that several functions share: the store, settings, and the scale of an experiment."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cubemesh.errors import StoreWarning, UsageError
from cubemesh.experiments.core.experiment import Scale

if TYPE_CHECKING:
    from cubemesh.store import Store

AnyStore: TypeAlias = "Store | str | Path | None"
"""An open store, its path or URL, or None for the default one."""
Settings = Mapping[str, Any] | Iterable[str]
"""Setting → value, or lines KEY=VALUE as on the command line."""


@contextmanager
def open_store(store: AnyStore, *, reading: bool = False) -> Iterator[Store]:
    """The store, closed at the end unless it was given open; for reading it must exist. One opened
    for writing takes in what waits in its spool; a StoreWarning says what waits, and which damaged
    rows were left out."""
    from cubemesh.store import Store
    from cubemesh.store.spool import format_files

    if isinstance(store, Store):
        yield store
        return
    location = None if store is None else os.fspath(store)
    with Store.open(location, must_exist=reading, read_only=reading) as opened:
        if not reading:
            opened.recover()
        elif opened.spooled:
            _warn(
                f"Waiting to be stored in {opened.spooled[0].parent}: "
                f"{format_files(len(opened.spooled))}. Store them with: cubemesh results --recover "
                f"--store {opened.name}"
            )
        yield opened
        for damage in opened.damage:
            _warn(damage.sentence)


def _warn(text: str) -> None:
    warnings.warn(text, StoreWarning, stacklevel=2)


def setting_lines(settings: Settings) -> list[str]:
    """Settings as lines KEY=VALUE."""
    if isinstance(settings, Mapping):
        return [f"{name}={value_text(value)}" for name, value in settings.items()]
    return list(settings)


def value_text(value: Any) -> str:
    """A setting's value as it is typed: `none`, `true`, `1,2,4`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple, range)):
        return ",".join(map(value_text, value))
    return str(value)


def host_lines(hosts: str | Iterable[str]) -> list[str]:
    """`hosts` as the lines of a setting; UsageError for a text without a name."""
    text = hosts if isinstance(hosts, str) else ",".join(hosts)
    if isinstance(hosts, str) and not text.strip(" ,"):
        raise UsageError(
            f"--hosts '{hosts}' names no host. Name two or more, separated by commas, or leave it "
            "out to use this host only."
        )
    return [f"hosts={text}"] if text else []


def scale_of(*, quick: bool, full: bool) -> Scale | None:
    """The scale of an experiment; None for its default."""
    if quick and full:
        raise UsageError("--quick and --full exclude each other: give one of them, or neither.")
    if quick:
        return Scale.QUICK
    return Scale.FULL if full else None
