"""Errors that cubemesh raises on purpose, each with the exit code of the command.

    CubemeshError            1   something failed; the message says what and what to do
    ├── UsageError           2   a name, value or combination that cannot be meant
    ├── DataError            1   a file of samples or a machine, not what it claims to be
    ├── StoreError           1   the store of results cannot be read or written
    └── BusyError           75   a device or store is taken; the same command may work later

Two more exit codes are no error's: 99, a threshold of `--fail-below` is breached, and 130, the
command was interrupted.

What happens *to a measurement* (out of memory, a crash, a time limit) is no error: it is an
`Outcome`, kept in the record. An exception of any other class is a bug in cubemesh.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CubemeshError(Exception):
    """Base of every deliberate error; `str(error)` is the whole message shown to the user."""

    exit_code = 1


class UsageError(CubemeshError):
    """What was asked for cannot be meant: says what was given, what is allowed, what to do."""

    exit_code = 2


class DataError(CubemeshError):
    """A file of samples, a machine or a topology is missing, damaged or not what it says it is."""


class StoreError(CubemeshError):
    """The store cannot be opened, read or written (read-only, full, newer schema)."""


class BusyError(CubemeshError):
    """A device or the store is in use by another process; trying again later may work."""

    exit_code = 75


def unknown_name(
    what: str, given: str, known: Iterable[str], hint: str = "", plural: str = ""
) -> UsageError:
    """The error for a name that is not in a table: names the nearest, or lists the known ones.

    `what` is the kind of thing ("network"), `hint` what to type to see them all.
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.6)
    plural = plural or f"{what}s"
    if near:
        allowed = f"Nearest: {', '.join(near)}."
    elif names:
        allowed = f"Known {plural}: {', '.join(names)}."
    else:
        allowed = f"No {plural} are known."
    article = "an" if what[0] in "aeiou" else "a"
    message = f"'{given}' is not {article} {what}. {allowed}"
    return UsageError(f"{message} {hint}".rstrip())
