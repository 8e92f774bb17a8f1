"""A store in a real PostgreSQL with three users, one of each role, and the application over it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cubemesh.store import Store
from cubemesh.team.roles import Role
from cubemesh.team.users import Users

sys.path.append(str(Path(__file__).parent.parent / "store"))
import postgresql

if not all(map(find_spec, ("starlette", "uvicorn", "httpx", "vl_convert"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def _team_postgresql() -> Iterator[postgresql.Server]:
    with postgresql.running() as server:
        yield server


@pytest.fixture
def location(_team_postgresql: postgresql.Server) -> str:
    """The URL of an empty database."""
    _team_postgresql.execute("drop schema public cascade")
    _team_postgresql.execute("create schema public")
    return _team_postgresql.url


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield opened


@pytest.fixture
def users(store: Store) -> Users:
    return Users(store.database)


@pytest.fixture
def tokens(users: Users) -> dict[Role, str]:
    """The token of a user of each role; the user has the name of the role."""
    return {role: users.add(role.label, role, who="owner") for role in Role}


@pytest.fixture
def bench(store: Store, users: Users) -> Any:
    from cubemesh.web.app import Workbench
    from cubemesh.web.security.gate import Rules
    from cubemesh.web.team_access import TeamAccess

    return Workbench(store, TeamAccess(users, "token-of-the-server"), Rules(), secure=False)
