"""A queue on SQLite and on a real PostgreSQL, agents as processes, and a scripted clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cubemesh.jobs.queue import JobQueue
from cubemesh.store import Store

sys.path.append(str(Path(__file__).parent.parent / "store"))
import postgresql

from cli_forkserver import CommandProcess, Forkserver
from scripted_clock import Clock


@pytest.fixture(scope="session")
def _jobs_postgresql() -> Iterator[postgresql.Server]:
    with postgresql.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path or URL of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "results.sqlite")
    server: postgresql.Server = request.getfixturevalue("_jobs_postgresql")
    import psycopg

    address = server.url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return server.url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield opened


@pytest.fixture
def queue(store: Store, clock: Clock) -> JobQueue:
    """A queue with the scripted clock."""
    return JobQueue(store.database, clock)


@pytest.fixture
def live(store: Store) -> JobQueue:
    """A queue with the database's own clock, as agents have it."""
    return JobQueue(store.database)


StartAgent = Callable[..., CommandProcess]


@pytest.fixture
def start_agent(location: str, pytorch_forkserver: Forkserver) -> Iterator[StartAgent]:
    """Starts `cubemesh agent` on the store; what still runs at the end is ended."""
    started: list[CommandProcess] = []

    def start(*options: str) -> CommandProcess:
        agent = pytorch_forkserver.start("agent", "--store", location, *options)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        if agent.poll() is None:
            agent.terminate()
            agent.terminate()
        agent.communicate()
