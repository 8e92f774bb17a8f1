from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from cubemesh.errors import UsageError
from cubemesh.views.charts import files
from cubemesh.views.charts.files import chart_csv, write_charts


def test_every_chart_becomes_a_file_of_each_format(sample, tmp_path):
    paths = write_charts(tmp_path / "new" / "charts", sample.answers)
    assert [p.name for p in paths] == [
        f"{name}.{ending}"
        for name in ("throughput-by-minibatch", "accuracy-by-minibatch", "systems")
        for ending in ("svg", "png", "csv")
    ]
    for path in paths:
        data = path.read_bytes()
        if path.suffix == ".png":
            assert data.startswith(b"\x89PNG")
            assert len(data) > 5000
        elif path.suffix == ".csv":
            assert data.startswith(b"line,x,y,low,high,unit,kind,missing,run\n")
        else:
            ElementTree.fromstring(data)
            assert b"#0b6e4f" in data
            assert b"var(--" not in data, "a file resolves its own colours"


def test_the_data_of_a_chart_has_every_point_and_reason(sample, made):
    chart = sample.answers[0].charts[0]
    rows = list(csv.DictReader(io.StringIO(chart_csv(chart))))
    assert len(rows) == sum(len(line.points) for line in chart.lines)
    first = chart.lines[0].points[0]
    assert (rows[0]["x"], float(rows[0]["y"]), rows[0]["run"]) == (
        str(first.x),
        first.y,
        first.run_id,
    )
    missing = [row for row in rows if row["missing"]]
    assert [(row["y"], row["missing"]) for row in missing] == [("", made.OOM.message)]


def test_a_caption_is_below_the_title(sample, tmp_path):
    (first, *_) = write_charts(
        tmp_path, sample.answers[:1], ("svg",), caption=lambda _, chart: f"of {chart.name}"
    )
    assert "of throughput-by-minibatch" in first.read_text("utf-8")


def test_names_that_come_twice_and_odd_names_get_their_own_files(made, sample, tmp_path):
    answers = (*sample.answers[:1], *sample.answers[:1], made.hostile().answers[0])
    names = [p.name for p in write_charts(tmp_path, answers, ("svg",))]
    assert names[:2] == ["throughput-by-minibatch.svg", "minibatch-throughput-by-minibatch.svg"]
    assert names[2] == "script-img-src-x-onerror-alert-1.svg"
    assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
    hostile = (tmp_path / names[2]).read_text("utf-8")
    assert "<img" not in hostile
    ElementTree.fromstring(hostile)


def test_unknown_format_is_refused_before_anything_is_written(sample, tmp_path):
    with pytest.raises(UsageError, match=r"'pdf'.*\bsvg, png\b"):
        write_charts(tmp_path / "x", sample.answers, ("svg", "pdf"))
    assert not (tmp_path / "x").exists()


EXTRA = ("altair", "vl_convert", "jinja2")
WITHOUT_THE_EXTRA = """
import json, os, sys
import cubemesh.views.terminal, cubemesh.views.json_output, cubemesh.views.progress
from cubemesh.errors import UsageError

print(json.dumps(sorted(sys.modules)), flush=True)
for missing in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        sys.modules[missing] = None
        try:
            import cubemesh.views.report.render
        except UsageError as error:
            print(json.dumps(str(error)), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def without_the_extra():
    """Of a process with the terminal's views alone: its modules, and the message for each package
    of the extra that is missing."""
    command = [sys.executable, "-c", WITHOUT_THE_EXTRA, *EXTRA]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules, *messages = map(json.loads, done.stdout.splitlines())
    return modules, messages


def test_without_the_extra_the_message_names_it(without_the_extra):
    _, messages = without_the_extra
    assert len(messages) == len(EXTRA)
    assert all("pip install 'cubemesh[views]'" in message for message in messages)


def test_terminal_views_load_nothing_of_the_extra(without_the_extra):
    modules, _ = without_the_extra
    assert "cubemesh.views.terminal" in modules
    assert {*EXTRA, "markupsafe", "torch", "pandas"}.isdisjoint(modules)


def test_the_library_of_a_page_is_made_once_and_again_if_its_file_is_damaged(tmp_path, monkeypatch):
    made = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(files, "_new_bundle", lambda: made.append(1) or "draw();\nmore();")
    assert [files.browser_bundle() for _ in range(3)] == ["draw();\nmore();"] * 3
    assert len(made) == 1
    (path,) = (tmp_path / "cubemesh" / "views").iterdir()
    path.write_text(path.read_text().replace("draw", "steal"))
    assert files.browser_bundle() == "draw();\nmore();"
    assert len(made) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "cubemesh").write_text("a file where the folder belongs")
    monkeypatch.setattr(files, "_new_bundle", lambda: "draw();")
    assert files.browser_bundle() == "draw();"
