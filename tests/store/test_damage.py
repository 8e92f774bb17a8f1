"""One damaged row of a store hides no other: it is left out, and listed with its id and reason."""

import json
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from cubemesh.errors import StoreError, StoreWarning
from cubemesh.store import Store
from cubemesh.store.series_chunks import CHUNK_SAMPLES
from cubemesh.untrusted import clean

pytestmark = pytest.mark.usefixtures("forked_servers")

DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "9" * 5_000

RECORDS = {
    "no JSON": "update records set record = '{' where run_id = ?",
    "another shape": "update records set record = '[1]' where run_id = ?",
    "too deep": f"update records set record = '{{\"spec\":{DEEP}}}' where run_id = ?",
    "a missing field": "update records set record = json_remove(record, '$.elapsed_s') "
    "where run_id = ?",
    "a missing field within": "update records set record = json_set(record, '$.ranks', "
    "json('[{\"rank\": 0}]')) where run_id = ?",
    "too large a number": f"update records set record = replace(record, '\"attempt\":1', "
    f"'\"attempt\":{HUGE}') where run_id = ?",
    "a number above 64 bits": "update records set record = replace(record, '\"steps\":3', "
    f"'\"steps\":{HUGE[:400]}') where run_id = ?",
    "a window of 0 s": "update records set record = json_set(record, '$.windows[3].elapsed_s', 0.0)"
    " where run_id = ?",
    "a window of NaN s": "update records set record = json_set(record, '$.windows[3].elapsed_s', "
    'json(\'{"$float": "NaN"}\')) where run_id = ?',
    "a window of 1e308 s": "update records set record = "
    "json_set(record, '$.windows[3].elapsed_s', 1e308) where run_id = ?",
    "a window of no steps": "update records set record = json_set(record, '$.windows[3].steps', 0) "
    "where run_id = ?",
    "a figure of 1e308": "update records set record = "
    "json_set(record, '$.figures.throughput_per_s.value', 1e308) where run_id = ?",
    "an impossible spec": "update records set record = "
    "json_set(record, '$.spec.placement.devices', 0) where run_id = ?",
    "no date": "update records set record = json_set(record, '$.started_utc', 'then') "
    "where run_id = ?",
    "another run's record": "update records set record = json_set(record, '$.run_id', 'other') "
    "where run_id = ?",
    "no UTF-8": "update records set record = cast(x'7bff7d' as text) where run_id = ?",
}


def damage(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as plain:
        assert plain.execute(statement, values).rowcount >= 1


@pytest.mark.parametrize("kind", RECORDS)
def test_a_damaged_record_hides_no_other(path, saving, kind):
    bad, good = saving.make_record(0), saving.make_record(1)
    with Store.open(str(path)) as store:
        store.save(bad)
        store.save(good)
    damage(path, RECORDS[kind], bad.run_id)
    with Store.open(str(path), read_only=True) as store:
        assert store.records() == [good]
        ((what, name, reason),) = [(d.what, d.id, d.reason) for d in store.damage]
        assert (what, name) == ("run", bad.run_id)
        assert reason
        assert len(reason) < 500
        assert clean(reason) == reason
        assert store.find(bad.key) == good
        with pytest.raises(StoreError):
            store.record(bad.run_id)


FLOATS = np.arange(1400, dtype="<f4").tobytes()
SERIES = {
    "no zlib": ("data = ?", b"\x00\x01"),
    "cut off": ("data = substr(data, 1, length(data) - 5) || ?", b""),
    "odd": ("data = ?", zlib.compress(FLOATS[:-1])),
    "too short": ("data = ?", zlib.compress(FLOATS[:80])),
    "too long": ("data = ?", zlib.compress(FLOATS * 10)),
    "more samples than a chunk has": ("samples = ?", 100 * CHUNK_SAMPLES),
    "samples that are text": ("samples = ?", "many"),
    "a start that is text": ("t0_s = ?", "then"),
    "a missing chunk": ("chunk = 7 + ?", 0),
}


@pytest.mark.parametrize("kind", SERIES)
def test_a_damaged_series_hides_no_other(path, saving, kind):
    record = saving.make_record()
    change, value = SERIES[kind]
    with Store.open(str(path)) as store:
        store.save(record, [saving.make_series(rank=0), saving.make_series(rank=1)])
    damage(path, f"update series set {change} where rank = 0 and chunk = 0", value)
    with Store.open(str(path), read_only=True) as store:
        (whole,) = store.series(record.run_id)
        assert (whole.rank, len(whole.values)) == (1, 700)
        (found,) = store.damage
        assert found.what == "series"
        assert record.run_id in found.id


def compressed_zeros(mebibytes):
    """What zlib makes of them; one block is compressed and repeated."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    adler32 = (mebibytes << 20) % 65521 << 16 | 1
    return b"\x78\xda" + block * mebibytes + packer.flush() + adler32.to_bytes(4)


def test_a_bomb_is_not_decompressed(path, saving):
    """3 GB of zeros in 3 MB; with a limit of 1 GiB for the reader."""
    assert zlib.decompress(compressed_zeros(3)) == bytes(3 << 20)
    record = saving.make_record()
    with Store.open(str(path)) as store:
        store.save(record, [saving.make_series()])
    damage(path, "update series set data = ? where chunk = 0", compressed_zeros(3000))
    script = (
        "import resource, sys\n"
        "from cubemesh.store import Store\n"
        "import numpy\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)\n"
        "with Store.open(sys.argv[1], read_only=True) as store:\n"
        "    assert store.series(sys.argv[2]) == []\n"
        "    assert len(store.damage) == 1\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path), record.run_id], check=True)


@pytest.mark.parametrize(
    ("table", "column", "read"),
    [
        ("machines", "machine", lambda store: store.machines()),
        ("experiment_runs", "experiment_run", lambda store: store.experiment_runs()),
    ],
    ids=["machine", "experiment run"],
)
def test_other_damaged_rows_hide_none(cubemesh, path, table, column, read):
    measured(cubemesh, path)
    with sqlite3.connect(path) as plain:
        columns = [c[1] for c in plain.execute(f"pragma table_info({table})")]
        copied = ", ".join(f"{c} || 'x'" if i == 0 else c for i, c in enumerate(columns))
        plain.execute(f"insert into {table} select {copied} from {table}")
        plain.execute(f"update {table} set {column} = ? where {columns[0]} like '%x'", (DEEP,))
    with Store.open(str(path), read_only=True) as store:
        assert len(read(store)) == 1
        (found,) = store.damage
        assert found.id.endswith("x")


@pytest.mark.parametrize(
    "change",
    [
        "delete from cubemesh_store",
        "insert into cubemesh_store values (1, '')",
        "update cubemesh_store set version = 'two'",
        "update cubemesh_store set version = 1e300",
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_without_one_version_is_refused_with_what_mends_it(path, saving, change, read_only):
    with Store.open(str(path)) as store:
        store.save(saving.make_record())
    damage(path, change)
    with pytest.raises(StoreError) as refused:
        Store.open(str(path), read_only=read_only)
    mend = str(refused.value).split('"')[1]
    with sqlite3.connect(path) as plain:
        plain.executescript(mend)
    with Store.open(str(path), read_only=read_only) as store:
        assert len(store.records()) == 1


def measured(cubemesh, path: Path) -> list[str]:
    """A store with three runs of an experiment; their ids."""
    done = cubemesh(
        *("run", "minibatch", "--set", "framework=null", "--set", "ceiling=false", "--json"),
        *("--set", "batch_sizes=1,2,4", "--store", str(path)),
    )
    assert done.returncode == 0, done.stderr
    return [record["run_id"] for record in json.loads(done.stdout)["records"]]


def test_every_verb_works_without_what_is_damaged(cubemesh, path, tmp_path):
    bad, *good = measured(cubemesh, path)
    damage(path, RECORDS["a window of NaN s"], bad)
    damage(path, "update series set data = x'00' where run_id = ? and chunk = 0", good[0])
    store = ("--store", str(path))
    listed = cubemesh("results", *store, "--json")
    document = json.loads(listed.stdout)
    assert [record["run_id"] for record in document["records"]] == good
    assert [(one["what"], one["id"]) for one in document["damaged"]] == [("run", bad)]
    page = tmp_path / "page.html"
    verbs = {
        "results": ("results",),
        "report": ("report", "--output", str(page)),
        "compare": ("compare", "batch_per_device=2", "batch_per_device=4"),
        "audit": ("audit",),
        "results of one": ("results", good[0]),
    }
    for name, words in verbs.items():
        done = cubemesh(*words, *store)
        assert done.returncode == 0, (name, done.stderr)
        if name == "compare":  # reads no other runs than it compares
            assert bad not in done.stderr
            continue
        wanted = good[0] if name == "results of one" else bad
        assert any(wanted in line for line in done.stderr.splitlines()), name
    assert page.stat().st_size > 1000
    again = cubemesh("run", "minibatch", "--set", "framework=null", "--set", "ceiling=false",
                     "--set", "batch_sizes=1,2,4", *store, "--json")  # fmt: skip
    ids = [record["run_id"] for record in json.loads(again.stdout)["records"]]
    assert ids[1:] == good, "only what is damaged is measured again"
    assert ids[0] != bad


def test_experiment_runs_with_damaged_settings_leave_the_others(cubemesh, path, tmp_path):
    measured(cubemesh, path)
    damage(
        path,
        "update experiment_runs set experiment_run = "
        "json_set(experiment_run, '$.settings.batch_sizes', 'all')",
    )
    cubemesh("run", "cluster", "--quick", "--store", str(path))
    for words in (("report", "--output", str(tmp_path / "page.html")), ("audit",)):
        done = cubemesh(*words, "--store", str(path))
        assert done.returncode == 0, done.stderr
        assert "experiment run" in done.stderr


def test_a_record_that_a_damaged_list_has_no_place_for_waits_in_the_spool(path, saving):
    """The list of runs has a row of a record that is gone, and its number is given again."""
    with Store.open(str(path)) as store:
        store.save(saving.make_record(0))
        store.save(saving.make_record(1))
    damage(path, "delete from records where run_id = ?", saving.make_record(1).run_id)
    with Store.open(str(path)) as store:
        with pytest.raises(StoreError, match="is damaged"):
            store.save(saving.make_record(2))
        with pytest.warns(StoreWarning, match="waits in the spool"):
            store.save_or_spool(saving.make_record(2))
    assert list(path.parent.glob(f"{path.stem}-spool/*"))
