"""Folders of a user's data, state and cache, by the XDG Base Directory Specification 0.8."""

from __future__ import annotations

import os
from pathlib import Path

from cubemesh.errors import UsageError


def data_folder() -> Path:
    """`$XDG_DATA_HOME/cubemesh`."""
    return _folder("XDG_DATA_HOME", ".local/share")


def state_folder() -> Path:
    """`$XDG_STATE_HOME/cubemesh`."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/cubemesh`."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, usual: str) -> Path:
    """Below `usual` in the home folder where the variable is no absolute path; UsageError where
    there is no home folder."""
    given = os.environ.get(variable, "")
    if os.path.isabs(given):
        return Path(given, "cubemesh")
    try:
        return Path.home() / usual / "cubemesh"
    except RuntimeError:
        raise UsageError(
            f"There is no home folder: HOME is not set and user {os.getuid()} has no entry in the "
            f"password file. Set HOME or {variable}."
        ) from None
