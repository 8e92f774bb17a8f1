"""Files that cannot be meant: one sentence and the exit code, no traceback, no wait."""

import json
import os

import pytest

from cubemesh.data.text.parallel_text import build_vocabulary
from cubemesh.errors import DataError
from cubemesh.machines.catalogue.fields import read_toml
from cubemesh.schema import SweepPoint
from cubemesh.store.imports import nccl_tests_log

pytestmark = pytest.mark.usefixtures("forked_servers")

HEAD = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on left device  0 [0x00] NVIDIA H200
#  Rank  1 Group  0 Pid 2 on right device  0 [0x00] NVIDIA H200
"""
COLUMNS = "#   size  count  type  redop  root  time  algbw  busbw  #wrong\n"
ROW = "  1048576  262144  float  sum  -1  40.00  26.21  26.21  0\n"
DEEP = "[" * 100_000
DIGITS = "9" * 5000


def sweep(**changed):
    row = {"run_id": "a", "size": 1024, "count": 256, "type": "float", "redop": "sum"}
    row |= {"out_of_place": {"time_us": 9.0, "wrong": 0}, "in_place": None} | changed
    ranks = [{"host": "h", "device": "cuda:0"}, {"host": "h", "device": "cuda:1"}]
    run = {"run_id": "a", "operation": "all-reduce", "library": "nccl", "ranks": ranks}
    return json.dumps({"schema": 1, "runs": [run], "rows": [row]})


@pytest.fixture
def refused(cubemesh, tmp_path):
    """Runs a command on a file; it ends with one line."""

    def run(name, content, *words, code=1):
        file = tmp_path / name
        file.write_text(content)
        done = cubemesh(*words, str(file), "--store", str(tmp_path / "s.db"))
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.count("\n") == 1
        assert len(done.stderr) < 5000

    return run


@pytest.mark.parametrize(
    "content",
    [
        '{"schema": 1, "runs": ' + DEEP,
        '{"schema": 1, "runs": [' + DIGITS + "]}",
        '{"schema": 1, "runs": [7]}',
        '{"schema": 1, "runs": [], "rows": [{}]}',
        '{"schema": 1, "runs": [], "rows": [{"run_id": []}]}',
        sweep(size=10**400),
        sweep(size=-1),
        sweep(out_of_place={"time_us": 9.0, "wrong": 10**400}),
        sweep(out_of_place={"time_us": 1e-320, "wrong": 0}),
        sweep(out_of_place={"time_us": 9.0, "wrong": 0.5}),
        sweep(type="\ud800"),
        HEAD + COLUMNS + ROW.replace("1048576", DIGITS),
        HEAD + COLUMNS + ROW.replace("  0\n", f"  {'9' * 400}\n"),
        HEAD + COLUMNS + ROW.replace("  0\n", "  0.5\n"),
        HEAD + COLUMNS + ROW.replace("40.00", "1e-320"),
        HEAD + COLUMNS + ROW.replace("40.00", "1e308"),
        HEAD + COLUMNS.replace("busbw", "busbw busbw") + ROW.replace("26.21  0", "26.21 26.21 0"),
        HEAD
        + "# size time algbw busbw #wrong count type\n 1048576 40.0 26.21 26.21 0 262144 float\n",
        HEAD + "# count type time busbw size\n 262144 float 40.00 26.21 1048576\n",
        HEAD + "# size count type busbw time busbw\n 1048576 262144 float 26.21 40.00 26.21\n",
    ],
)
def test_a_log_or_sweep_that_cannot_be_meant(refused, content):
    refused("a.log", content, "import")


def test_a_log_of_many_sizes_is_read_in_one_pass(cubemesh, tmp_path, monkeypatch):
    """Each point is compared with no other."""
    looked = []

    class Counted(SweepPoint):
        def __getattribute__(self, name):
            looked.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(nccl_tests_log, "SweepPoint", Counted)

    def looks(lines):
        looked.clear()
        rows = (
            f"  {4 * n}  {n}  float  sum  -1  1.0  {4e-3 * n:.5f}  {4e-3 * n:.5f}  0\n"
            for n in range(1, lines + 1)
        )
        file = tmp_path / f"{lines}.log"
        file.write_text(HEAD + COLUMNS + "".join(rows))
        assert cubemesh("import", str(file), "--store", str(tmp_path / "s.db")).returncode == 0
        return len(looked)

    assert looks(400) <= 2 * looks(200) + 10


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: p.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.log", ["import"]),
        ("a.toml", ["predict", "resnet-50", "--machine"]),
        ("a.xml", ["predict", "resnet-50", "--machine"]),
        ("a.csv", ["predict", "resnet-50", "--machine", "hgx-h200", "--calibrate"]),
    ],
)
def test_what_is_no_regular_file_is_not_waited_for(cubemesh, tmp_path, make, name, words):
    make(tmp_path / name)
    done = cubemesh(*words, str(tmp_path / name), "--store", str(tmp_path / "s.db"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


SYSTEM = """
name = "x"
title = "x"
sources = ["me"]
[gpus]
device = "p100-pcie-16gb"
count = {count}
[cpus]
device = "xeon-e5-2690-v4"
count = 1
[pcie]
generation = 3
gpu_to_switch = [0, 0]
switch_to_cpu = [0]
"""


@pytest.mark.parametrize(
    "content",
    [
        SYSTEM.format(count=DIGITS),
        SYSTEM.format(count="0x" + "f" * 6000),
        SYSTEM.format(count=2) + f"a = [0x{'f' * 6000}]",
        f"a = {DEEP}",
        "a = 2024-13-45",
    ],
)
def test_a_machine_that_cannot_be_meant(cubemesh, refused, tmp_path, content):
    refused("a.toml", content, "predict", "resnet-50", "--machine")
    (tmp_path / "b.toml").write_text(SYSTEM.format(count=2))
    words = ("predict", "resnet-50", "--devices", "1,2", "--machine", str(tmp_path / "b.toml"))
    assert cubemesh(*words).returncode == 0


@pytest.mark.parametrize("value", ["1e-320", "1e-300", "1e308"])
def test_rates_of_links_are_within_reason(value):
    with pytest.raises(DataError):
        read_toml(f"gb_per_s = {value}", "x").above_zero("gb_per_s")


@pytest.mark.parametrize(
    "rows",
    [
        "all-reduce,2,8,1\nall-reduce,2,1e308,1e308",
        "all-reduce,2,1e-320,1\nall-reduce,2,8,1",
        "all-reduce,2,8,1e-320\nall-reduce,2,16,1e-320",
        "all-reduce,1e308,8,1\nall-reduce,1e308,16,1",
    ],
)
def test_a_csv_sweep_that_cannot_be_meant(refused, rows):
    words = ["predict", "resnet-50", "--machine", "hgx-h200", "--calibrate"]
    refused("a.csv", f"operation,devices,bytes,seconds\n{rows}\n", *words)


def test_an_encoding_that_xml_declares_is_not_used(refused):
    for encoding in ("utf-7", "utf-16", "no-such", "idna"):
        text = f'<?xml version="1.0" encoding="{encoding}"?><system version="1"></system>'
        refused("a.xml", text, "predict", "resnet-50", "--machine")


@pytest.mark.parametrize("setting", ["memory_limit_bytes", "seed", "windows"])
def test_a_setting_of_thousands_of_digits(cubemesh, tmp_path, setting):
    words = ["run", "minibatch", "--set", "framework=null", "--store", str(tmp_path / "s.db")]
    done = cubemesh(*words, "--set", f"{setting}={DIGITS}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_text_of_one_endless_line(tmp_path):
    file = tmp_path / "text"
    with file.open("wb") as sparse:
        sparse.truncate(8 << 30)  # zeros, which take no room
    with pytest.raises(DataError, match="Line 1 "):
        build_vocabulary(file, 100)
