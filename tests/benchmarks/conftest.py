"""The scripts under benchmarks/, as modules and as a user runs them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from script_server import run_script

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Name → the script as a module, which can import the other scripts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def ran(tmp_path):
    """(script, options) → its output, and what it wrote with `--json`."""

    def run(name, options):
        written = tmp_path / f"{name}.json"
        words = [word for pair in options.items() for word in pair]
        output = run_script(FOLDER / f"{name}.py", *words, "--json", written)
        return output, json.loads(written.read_text())

    return run


class ScriptedProgram:
    """A program whose steps take `step_s` on a clock of its own."""

    def __init__(self, step_s):
        self.now, self.step_s, self.steps = 0.0, step_s, 0

    def step(self):
        self.steps += 1
        self.now += self.step_s

    def side(self, script):
        """The program as a side of ab_comparison.py."""
        return script("ab_comparison").Side(
            step=self.step, synchronize=lambda: None, clock=lambda: self.now
        )


@pytest.fixture
def scripted_program():
    """Seconds of a step → a `ScriptedProgram`."""
    return ScriptedProgram
