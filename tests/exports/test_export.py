"""Exports as a user makes them: by the option, by the function, into a file or a pipe."""

import io
import json
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

import cubemesh
from cubemesh.errors import StoreError, UsageError
from cubemesh.exports import FORMATS, format_of

pytestmark = pytest.mark.usefixtures("forked_servers")

SCRIPT = "step=0.002,per_sample=0.0001,jitter=0.02"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two simulated runs, repeated three times."""
    folder = tmp_path_factory.mktemp("exports")
    path = str(folder / "s.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        cubemesh.run(
            "minibatch",
            networks=["little-cnn"],
            batch_sizes=[8, 16],
            ceiling=False,
            settings={"framework": "null", "script": SCRIPT, "repeats": "3"},
            quick=True,
            store=path,
        )
    return path


@pytest.fixture
def cli(cubemesh):
    return cubemesh


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written_by_its_suffix(store, tmp_path, cli, name):
    suffix = FORMATS[name].suffixes[0]
    file = tmp_path / f"runs{suffix}"
    done = cli("results", "--store", store, "--export", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert f"({name})" in done.stderr
    assert file.stat().st_size > 100
    assert [p.name for p in tmp_path.iterdir()] == [file.name], "no temporary file remains"
    again = cubemesh.export(
        cubemesh.results(store=store), tmp_path / "again", format=name, store=store
    )
    assert (again.format, again.runs) == (name, 6)
    if name != "parquet":
        assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_filters_and_limit_select_the_runs(store, tmp_path, cli):
    file = tmp_path / "r.jsonl"
    run_id = cubemesh.results(store=store)[0]["run_id"]
    for words, count in (((), 6), (("--limit", "2"), 2), (("--outcome", "oom"), 0), ((run_id,), 1)):
        done = cli("results", *words, "--store", store, "--export", str(file), "--json")
        assert json.loads(done.stdout) == {
            "schema": 1,
            "kind": "export",
            "file": str(file),
            "format": "jsonl",
            "runs": count,
        }
        assert len(file.read_text().splitlines()) == count


def test_a_table_with_intervals_from_python(store, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = cubemesh.results(store=store).to_pandas()
    cubemesh.export(cubemesh.results(store=store), tmp_path / "a.parquet", store=store)
    parquet = pandas.read_parquet(tmp_path / "a.parquet")
    pandas.testing.assert_frame_equal(frame, parquet, check_dtype=False, check_exact=True)
    assert str(frame["started_utc"].dt.tz) == "UTC"
    assert cubemesh.results(store=store, outcome="oom").to_pandas().empty
    assert (frame["throughput_per_s_low"] <= frame["throughput_per_s"]).all()
    assert (frame["throughput_per_s"] <= frame["throughput_per_s_high"]).all()
    assert frame["script"].unique().tolist() == [SCRIPT]


@pytest.mark.parametrize(("threshold", "code", "tag"), [("0.5", 0, None), ("2", 99, "failure")])
def test_a_comparison_below_the_threshold_fails_in_the_report(
    store, tmp_path, cli, threshold, code, tag
):
    file = tmp_path / "report.xml"
    sides = ("batch_per_device=8", "batch_per_device=16")
    words = ("--store", store, "--fail-below", threshold, "--export", str(file))
    done = cli("compare", *sides, *words)
    assert done.returncode == code, done.stderr
    assert done.stdout, "the comparison is shown as well"
    root = Xml.parse(file).getroot()
    assert root.get("tests") == "7"
    (case,) = (c for c in root.iter("testcase") if c.get("classname") == "cubemesh.compare")
    assert [child.tag for child in case] == ["properties", *([tag] if tag else [])]


def test_a_run_against_a_slower_program_fails_in_the_report(tmp_path, cli):
    file, store = tmp_path / "report.xml", str(tmp_path / "s.sqlite")
    done = cli(
        *("run", "minibatch", "--quick", "--set", "framework=null", "--set", f"script={SCRIPT}"),
        *("--set", "ceiling=false", "--set", "forward=false", "--set", "batch_sizes=8"),
        *("--against", "script=step=0.004,jitter=0.02", "--fail-below", "0.9"),
        *("--store", store, "--export", str(file)),
    )
    assert done.returncode == 99, done.stderr
    (case,) = Xml.parse(file).getroot().iter("testcase")
    assert "against:script=" in case.get("name", "")
    assert case.find("failure") is not None


@pytest.mark.parametrize(
    ("script", "code", "tag", "names"),
    [
        (
            SCRIPT,
            99,
            "failure",
            {"little-cnn batch_per_device=8", "little-cnn batch_per_device=16"},
        ),
        ("step=0.003", 1, "error", {"baseline"}),
    ],
    ids=["below the threshold", "not in the baseline"],
)
def test_each_workload_of_a_baseline_is_a_case_of_the_report(
    store, tmp_path, cli, script, code, tag, names
):
    file = tmp_path / "report.xml"
    done = cli(
        *("run", "minibatch", "--quick", "--set", "framework=null", "--set", f"script={script}"),
        *("--set", "ceiling=false", "--set", "batch_sizes=8,16", "--set", "repeats=3"),
        *("--store", str(tmp_path / "s.sqlite"), "--baseline", store, "--fail-below", "2"),
        *("--export", str(file)),
    )
    assert done.returncode == code, done.stderr
    cases = list(Xml.parse(file).getroot().iter("testcase"))
    compared = [c for c in cases if c.get("classname") == "cubemesh.compare"]
    assert len(cases) - len(compared) == 6
    assert all(c.find(tag) is not None for c in compared)
    assert {c.get("name", "").partition(" framework=")[0] for c in compared} == names


def test_standard_output_has_the_file_and_nothing_else(store, cli, monkeypatch):
    class Out(io.StringIO):
        buffer = io.BytesIO()

    monkeypatch.setattr(sys, "stdout", Out())
    cubemesh.export(cubemesh.results(store=store), "-", format="csv", store=store)
    assert Out.buffer.getvalue().startswith(b"run_id,")
    assert sys.stdout.getvalue() == ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--export", "runs.xyz"), ["runs.xyz", "--format", *FORMATS]),
        (("--export", "runs.csv", "--format", "parket"), ["parket", "parquet"]),
        (("--format", "csv"), ["--export"]),
        (("--export", "/nowhere/at/all.csv"), ["/nowhere/at/all.csv"]),
        (("--export", "-", "--format", "csv", "--json"), ["--json", "--export -"]),
    ],
)
def test_what_cannot_be_written_is_wrong_usage(store, cli, words, named):
    done = cli("results", "--store", store, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert [n for n in named if n not in done.stderr] == []


def test_a_missing_store_is_a_store_error(tmp_path):
    with pytest.raises(StoreError):
        cubemesh.export([], tmp_path / "a.csv", store=tmp_path / "none.sqlite")


def test_a_wrong_format_is_found_before_anything_is_measured(tmp_path, cli):
    store = tmp_path / "s.sqlite"
    done = cli("run", "minibatch", "--store", str(store), "--export", "x.doc")
    assert done.returncode == 2
    assert not store.exists()


def test_parquet_without_pyarrow_names_the_extra(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"cubemesh\[exports\]"):
        cubemesh.export(cubemesh.results(store=store), tmp_path / "a.parquet", store=store)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_and_links_are_followed(store, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("before")
    link = tmp_path / "link.csv"
    link.symlink_to(file)
    cubemesh.export(cubemesh.results(store=store), link, store=store)
    assert link.is_symlink()
    assert file.read_text().startswith("run_id,")
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask")).split()[1], 8)


def test_each_suffix_selects_one_format():
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    assert len(suffixes) == len(set(suffixes))
    for name, entry in FORMATS.items():
        for suffix in entry.suffixes:
            assert format_of(f"a/b{suffix.upper()}") == name
