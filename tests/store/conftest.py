"""A store in a temporary folder, and the records that go into it."""

import importlib.util
import sys
from collections.abc import Iterator
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


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(str(path)) as opened:
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
