"""A store in a temporary folder, and the records that go into it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from cubemesh.store import Store

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
