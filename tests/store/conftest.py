"""A store in a temporary folder, and the records that go into it."""

import importlib.util
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from cubemesh.store import Store

sys.path.insert(0, str(Path(__file__).parent))
import postgresql

SAVING = Path(__file__).parent / "saving.py"


@pytest.fixture(scope="session")
def saving() -> ModuleType:
    """The module of `saving.py`; `saving.__file__` is the script to run."""
    spec = importlib.util.spec_from_file_location("saving", SAVING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a store runs on SQLite and on PostgreSQL, but those about the SQLite file at
    `path`."""
    names = metafunc.fixturenames
    named = any(
        "database" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "database" in names and "path" not in names and not named:
        metafunc.parametrize("database", ["sqlite", "postgresql"])


@pytest.fixture
def database() -> str:
    """The kind of database."""
    return "sqlite"


@pytest.fixture
def new_location(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., str]]:
    """Gives the path or URL of a database of a name: empty, or a copy of the one at `template`."""
    if database == "sqlite":

        def copy(name: str, template: str | None = None) -> str:
            path = tmp_path / f"{name}.sqlite"
            if template is not None:
                shutil.copy(template, path)
            return str(path)

        yield copy
        return
    own: postgresql.Server = request.getfixturevalue("_postgresql")
    made: list[str] = []

    def make(name: str, template: str | None = None) -> str:
        made.append(f"{name}_{uuid.uuid4().hex}")
        source = "template0" if template is None else own.database_of(template)
        own.execute(f"create database {made[-1]} template {source}")
        return own.url_of(made[-1])

    yield make
    for one in made:
        own.execute(f"drop database {one} with (force)")


@pytest.fixture
def location(new_location: Callable[..., str]) -> str:
    """The path or URL of an empty database."""
    return new_location("results")


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield opened


@pytest.fixture(scope="session")
def _postgresql() -> Iterator[postgresql.Server]:
    with postgresql.running() as server:
        yield server


@pytest.fixture
def server(_postgresql: postgresql.Server) -> postgresql.Server:
    """A running PostgreSQL without a store."""
    import psycopg

    address = _postgresql.url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return _postgresql
