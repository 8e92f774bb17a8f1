"""Errors that cubemesh raises on purpose, each with the exit code of the command.

    CubemeshError            1   something failed; the message has cause and remedy
    ├── UsageError           2   an invalid name, value or combination
    ├── DataError            1   an invalid or damaged file of data or of a machine
    ├── StoreError           1   the store of results cannot be read or written
    ├── BusyError           75   a device, store or folder is in use; try again later
    └── AccuracyError       99   no model keeps the accuracy that was asked for

99 is the exit code of every missed target: that accuracy, the target accuracy of a training and the
threshold of `--fail-below`. One more exit code: 130, interrupted.

A `StoreWarning` is no error: a Python warning (of the module `warnings`) about the store, such as
rows that are damaged and left out. The command line prints it on stderr.

What happens *to a measurement* (out of memory, a crash, a time limit) is not an error but an
`Outcome`, stored in the record. An exception of any other class is a bug in cubemesh.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

TARGET_MISSED = 99
"""Exit code where a requested accuracy was not reached, or the threshold of `--fail-below` is
breached."""


class CubemeshError(Exception):
    """Base of every deliberate error; `str(error)` is the whole message shown to the user."""

    exit_code = 1


class UsageError(CubemeshError):
    """An invalid request; the message has the given value, the allowed ones and the remedy."""

    exit_code = 2


class DataError(CubemeshError):
    """A file of samples, a machine or a topology is missing, damaged or invalid."""


class StoreError(CubemeshError):
    """The store cannot be opened, read or written (read-only, full, newer schema)."""


class BusyError(CubemeshError):
    """A device, the store or a folder of checkpoints is in use by another process; trying again
    later may work."""

    exit_code = 75


class AccuracyError(CubemeshError):
    """No model in the allowed precisions keeps the accuracy bound."""

    exit_code = TARGET_MISSED


class StoreWarning(UserWarning):
    """What one should know about the store, which stopped nothing."""


def unknown_name(
    what: str, given: str, known: Iterable[str], hint: str = "", plural: str = ""
) -> UsageError:
    """The error for a name that is not in a table, with the nearest or all known names.

    `what` is the kind of name ("network"), `hint` the command that lists them.
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
