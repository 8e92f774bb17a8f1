"""A worker needs only cubemesh's source, the standard library, NumPy, psutil and its framework."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cubemesh
from cubemesh.schema import Budget, Outcome, ProgramSettings, RunSpec, TrainSteps, Window
from cubemesh.schema.serialization import from_plain
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job

BLOCKED = (
    *("pydantic", "sqlalchemy", "rich", "typer", "altair", "jinja2", "scipy", "sklearn"),
    *("pandas", "pynvml", "vl_convert", "networkx"),
)

RUN = f'''
import sys

class Hiding:
    """A finder that finds what another does, but for what is blocked: as if not installed."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
from cubemesh.worker.__main__ import main
code = main(["run", sys.argv[1]])
loaded = {{name.partition(".")[0] for name in sys.modules}} & set({BLOCKED})
assert not loaded, loaded
sys.exit(code)
'''


@pytest.mark.parametrize("framework", ["null", "pytorch"])
def test_a_worker_runs_without_the_runners_libraries(tmp_path, framework):
    if framework == "pytorch":
        pytest.importorskip("torch")
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=4, data="digits"),
        program=ProgramSettings(framework=framework),
        budget=Budget(steps=2, seconds=0.0, windows=2, warmup_seconds=0.0),
    )
    job = Job(spec=spec, folder=str(tmp_path)).write()
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(job)],
        env={**os.environ, "PYTHONPATH": str(Path(cubemesh.__file__).parent.parent)},
        capture_output=True,
        text=True,
    )
    output = (tmp_path / "output-0.txt").read_text() if done.returncode == 0 else done.stderr
    assert done.returncode == 0, output
    events = read_events(events_path(tmp_path, 0))
    assert from_plain(Outcome, events[-1]["outcome"]).ok, (events[-1], output)
    windows = [from_plain(Window, e["window"]) for e in events if e["event"] == "window"]
    assert sum(w.samples for w in windows if w.phase == "measure") >= 8
