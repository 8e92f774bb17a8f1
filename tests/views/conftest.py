"""Shared by the tests of the views: the sample, a page made of it, and a browser."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Charts and reports cannot be imported without the extra `views`.
if importlib.util.find_spec("altair") is None:
    collect_ignore = ["charts", "report", "test_browser.py"]


def _sibling(name: str) -> ModuleType:
    """A helper module of this folder: tests are no package, so it is loaded by its path."""
    full = f"views_tests_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """The module `sample`, to make other machines, records and answers from."""
    return _sibling("sample")


@pytest.fixture(scope="session")
def sample(made: ModuleType) -> Any:
    return made.sample()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a sample as a page and returns its path."""

    def write(sample: Any, **changes: Any) -> Path:
        from cubemesh.views.report.render import Report, write_report

        fields = {
            "machine": sample.machine,
            "answers": sample.answers,
            "records": sample.records,
            "series": sample.series,
            "made_utc": "2026-11-20T15:00:00+00:00",
            "version": "0.1.0",
        } | changes
        path = tmp_path_factory.mktemp("page") / "new" / "report.html"
        return write_report(path, Report(**fields))

    return write


@pytest.fixture(scope="session")
def page(written: Callable[..., Path], sample: Any) -> Path:
    return written(sample)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = _sibling("chromium")
    executable = chromium.find_chromium()
    if executable is None:
        pytest.skip(f"no {', '.join(chromium.NAMES)} is installed")
    running = chromium.Browser(executable, tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()
