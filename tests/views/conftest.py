"""Shared by the tests of the views: the sample, a page made of it, and a browser."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import report_sample

# Charts and reports cannot be imported without the extra `views`.
if importlib.util.find_spec("altair") is None:
    collect_ignore = ["charts", "report", "test_browser.py"]


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """The module `sample`, to make other machines, records and answers from."""
    return report_sample


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
