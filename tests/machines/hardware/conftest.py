"""Copies of /sys with links: devices below their bridges, and the classes that lead to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Link = Callable[[str, str], None]


@pytest.fixture
def link(tmp_path: Path) -> Link:
    """Makes a relative link below the root of `make_tree`, as /sys has them."""

    def make(path: str, target: str) -> None:
        place, aim = tmp_path / path.lstrip("/"), tmp_path / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        aim.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(aim, place.parent))

    return make
