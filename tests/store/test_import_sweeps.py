"""Sweeps measured elsewhere become records: logs of nccl-tests, and our own JSON."""

import json

import pytest

from cubemesh.errors import DataError
from cubemesh.store import Store
from cubemesh.store.imports.import_sweeps import import_file

LOG = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on left device  0 [0x00] NVIDIA H200
#  Rank  1 Group  0 Pid 2 on right device  0 [0x00] NVIDIA H200
#   size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
  1048576  262144  float  sum  -1  40.00  26.21  26.21  0  41.00  25.58  25.58  3
"""


def test_a_log_becomes_a_record_with_its_hosts_and_an_experiment_run(tmp_path, store):
    path = tmp_path / "a.log"
    path.write_text(LOG)
    (record,) = import_file(store, path).records
    assert store.records() == [record]
    assert record.ok
    assert record.spec.program.framework == "nccl-tests"
    assert [(r.host, r.device_name) for r in record.ranks] == [
        ("left", "NVIDIA H200"),
        ("right", "NVIDIA H200"),
    ]
    assert record.figure("bus_bytes_per_s") == pytest.approx(26.21e9, rel=1e-3)
    assert [w.code for w in record.warnings] == ["wrong-results"]
    (experiment_run,) = store.experiment_runs("collectives")
    assert experiment_run.run_ids == (record.run_id,)
    assert store.machine(experiment_run.machine_id).hostname == "left, right"


def test_a_sweep_is_stored_once(tmp_path, store):
    """The same file, and a copy under another name."""
    for name in ("a.log", "copy.log"):
        (tmp_path / name).write_text(LOG)
    first = import_file(store, tmp_path / "a.log")
    assert first.new == (first.records[0].run_id,)
    machine = store.machines()
    for name in ("a.log", "copy.log"):
        again = import_file(store, tmp_path / name)
        assert (again.records, again.new) == (first.records, ())
    assert (len(store.records()), len(store.experiment_runs())) == (1, 1)
    assert store.machines() == machine


def test_of_a_file_with_known_and_new_sweeps_the_new_ones_are_added(tmp_path, store):
    from cubemesh.api.collectives import Sweeps
    from cubemesh.views.collectives import document

    path = tmp_path / "a.log"
    path.write_text(LOG)
    with Store.open(str(tmp_path / "other.db")) as other:
        records = import_file(other, path).records
    path.write_text(LOG.replace("all_reduce", "broadcast").replace("sum  -1", "none  0"))
    with Store.open(str(tmp_path / "other.db")) as other:
        records += import_file(other, path).records
    for number, count in ((1, 1), (2, 2)):
        file = tmp_path / f"{number}.json"
        sweeps = document(Sweeps(records=records[:number]))
        file.write_text(json.dumps(sweeps | {"rows": sweeps["rows"], "runs": 2 * sweeps["runs"]}))
        found = import_file(store, file)
        assert len(found.records) == count
        assert found.new == (found.records[-1].run_id,)
    assert [r.run_id for r in store.records()] == [r.run_id for r in found.records]


def test_the_command_says_what_was_stored_already(tmp_path, cubemesh):
    (tmp_path / "a.log").write_text(LOG)
    command = ("import", str(tmp_path / "a.log"), "--store", str(tmp_path / "s.db"))
    first, again = (cubemesh(*command, "--json") for _ in range(2))
    assert [first.returncode, again.returncode] == [0, 0]
    assert len(json.loads(first.stdout)["new"]) == 1
    assert json.loads(again.stdout)["new"] == []
    assert json.loads(again.stdout)["rows"] == json.loads(first.stdout)["rows"]
    assert (first.stderr, "stored already" in again.stderr) == ("", True)


def test_two_files_of_one_machine_are_two_experiment_runs(tmp_path, store):
    for name, text in (("a.log", LOG), ("b.log", LOG.replace("40.00", "40.10"))):
        (tmp_path / name).write_text(text)
        import_file(store, tmp_path / name)
    assert [len(run.run_ids) for run in store.experiment_runs()] == [1, 1]


def test_json_of_collectives_is_imported(tmp_path, store):
    from cubemesh.api.collectives import Sweeps
    from cubemesh.views.collectives import document

    path = tmp_path / "a.log"
    path.write_text(LOG)
    (record,) = import_file(store, path).records
    again = tmp_path / "a.json"
    again.write_text(json.dumps(document(Sweeps(records=(record,)))))
    with Store.open(str(tmp_path / "other.db")) as other:
        (found,) = import_file(other, again).records
    assert [p.time_s for p in found.sweep] == pytest.approx([p.time_s for p in record.sweep])
    assert [p.wrong for p in found.sweep] == [0, 3]
    assert [r.host for r in found.ranks] == ["left", "right"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON"),
        ("{}", "schema 1"),
        ('{"schema": 1, "runs": [], "rows": []}', "no rows"),
        ('{"schema": 1, "runs": [{"run_id": "x"}], "rows": [{}]}', "rows: 'run_id'"),
        ('{"schema": 1, "runs": [3], "rows": [{"run_id": 1}]}', "run 1: "),
        ("nothing", "nccl-tests"),
    ],
)
def test_files_without_a_sweep_are_refused(tmp_path, store, text, words):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        import_file(store, path)
    assert store.records() == []


def test_missing_and_binary_files_are_refused(tmp_path, store):
    with pytest.raises(DataError, match="cannot be read"):
        import_file(store, tmp_path / "none")
    (tmp_path / "b").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"byte 0\b.*UTF-8"):
        import_file(store, tmp_path / "b")
