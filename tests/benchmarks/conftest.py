"""The scripts under benchmarks/, as modules and as a user runs them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Name → the script as a module; it finds its neighbours as it does when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def ran(tmp_path):
    """(script, its options) → what it printed, and what it wrote with `--json`."""

    def run(name, options):
        kept = tmp_path / f"{name}.json"
        words = [word for pair in options.items() for word in pair]
        done = subprocess.run(
            [sys.executable, FOLDER / f"{name}.py", *words, "--json", kept],
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.stdout, json.loads(kept.read_text())

    return run
