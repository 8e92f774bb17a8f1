"""Shared by the tests of the pages: a store, the application over it, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if not all(map(find_spec, ("starlette", "uvicorn", "httpx", "vl_convert"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from web_pages import fill

    path = tmp_path_factory.mktemp("web") / "results.sqlite"
    fill(path)
    return path


@pytest.fixture
def serving(forkserver: Any) -> Any:
    """Starts servers; see `served.Serving`."""
    from served import COMMAND, ready

    def start(*words: str, store: Path, agent: bool = False) -> Any:
        options = words if agent else ("--no-agent", *words)
        return ready(forkserver.start(*COMMAND, str(store), *options))

    return start


@pytest.fixture
def access() -> Any:
    from cubemesh.web.access import Access
    from web_pages import TOKEN

    return Access(TOKEN)


@pytest.fixture
def bench(filled: Path, access: Any) -> Iterator[Any]:
    from cubemesh.store import Store
    from cubemesh.web.app import Workbench
    from cubemesh.web.security.gate import Rules

    with Store.open(str(filled)) as store:
        yield Workbench(store, access, Rules(host_names=("lab.example.org",)), secure=False)


@pytest.fixture
def stranger(bench: Any) -> Any:
    from web_pages import Client

    return Client(bench)


@pytest.fixture
def client(bench: Any, access: Any) -> Any:
    from web_pages import Client

    return Client(bench, cookie=f"{access.cookie}={access.new_session()}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """Empty."""
    from cubemesh.store import Store

    with Store.open(str(tmp_path / "results.sqlite")) as opened:
        yield opened


@pytest.fixture
def queue(store: Any) -> Any:
    from cubemesh.jobs.queue import JobQueue

    return JobQueue(store.database)


@pytest.fixture
def member(store: Any, access: Any) -> Any:
    """Logged in, on pages of `store`."""
    from cubemesh.web.app import Workbench
    from cubemesh.web.security.gate import Rules
    from web_pages import OWN, Client

    bench = Workbench(store, access, Rules(), secure=False)
    return Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
