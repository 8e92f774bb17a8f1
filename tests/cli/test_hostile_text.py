"""What files, stores and programs say reaches the terminal without escapes, and cut."""

import sqlite3

import pytest

from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")

ESCAPE = "\x1b]0;title\x07\x1b[2J"
HOSTILE = f"{ESCAPE}\x9b31m\u202e\u2066"
LOG = f"""# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on left{HOSTILE} device  0 [0x00] NVIDIA{HOSTILE}H200
#  Rank  1 Group  0 Pid 2 on right device  0 [0x00] NVIDIA{HOSTILE}H200
#   size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
  1048576  262144  float  sum  -1  40.00  26.21  26.21  0  41.00  25.58  25.58  3
"""
PREDICT = ("predict", "resnet-50", "--machine")


@pytest.fixture
def said(cubemesh):
    """What a command writes; it has no character that a terminal obeys."""

    def run(code, *words):
        done = cubemesh(*map(str, words))
        both = done.stdout + done.stderr
        assert done.returncode == code, both[-2000:]
        bad = [c for c in both if c not in "\t\n" and (c < " " or "\x7f" <= c <= "\x9f")]
        assert bad + [c for c in both if c in "\u202e\u2066" or "\ud800" <= c <= "\udfff"] == []
        assert len(done.stderr) < 6000
        return both

    return run


def test_an_imported_device_name(said, tmp_path):
    (tmp_path / "a.log").write_text(LOG)
    store = ("--store", tmp_path / "s.db")
    assert "NVIDIA" in said(0, "import", tmp_path / "a.log", *store)
    with Store.open(str(tmp_path / "s.db")) as opened:
        (record,) = opened.records()
    assert "title" in said(0, "results", record.run_id, *store)
    said(2, *PREDICT, "hgx-h200", "--calibrate", record.run_id, *store)


def test_keys_and_text_of_a_toml_file(said, tmp_path):
    file = tmp_path / "c.toml"
    key = ESCAPE.replace("\x1b", "\\u001b").replace("\x07", "\\u0007") + "\\u009b\\u202e"
    for text in (f'"{key}" = 1\n', f'name = "{key}"\n', f'gpu = "{key}"\n', f"[{ESCAPE}]\n"):
        file.write_text(text)
        said(1, *PREDICT, file)


def test_attributes_of_an_xml_file(said, tmp_path):
    file = tmp_path / "t.xml"
    for text in (
        f'<system version="1"><cpu numaid="{"&#x9b;31m&#x202e;" * 50}"/></system>',
        f'<system version="1"><{"x" * 9000}/></system>',
        f"<system>{ESCAPE}</system>",
    ):
        file.write_text(text)
        said(1, *PREDICT, file)


def test_tables_of_a_foreign_database(said, tmp_path):
    file = tmp_path / "f.db"
    with sqlite3.connect(file) as database:
        database.execute(f'create table "t{HOSTILE}" (x)')
        database.execute(f'create table "u{"x" * 90_000}" (x)')
    database.close()
    said(1, "results", "--store", file)


def test_ids_networks_and_damaged_records_of_a_store(said, tmp_path):
    (tmp_path / "a.log").write_text(LOG)
    file = tmp_path / "s.db"
    said(0, "import", tmp_path / "a.log", "--store", file)
    with sqlite3.connect(file) as database:
        columns = [row[1] for row in database.execute("pragma table_info(records)")]
        rest = ", ".join(c for c in columns if c not in ("run_id", "sequence"))
        for n in range(2):
            database.execute(
                f"insert into records (run_id, {rest}) select ?, {rest} from records limit 1",
                (f"x{n}{HOSTILE}",),
            )
        database.execute("update records set network = ?", (f"net{HOSTILE}",))
    said(2, "results", "x", "--store", file)
    with sqlite3.connect(file) as database:
        damaged = b"\xff\x1b[2J" * 50_000
        database.execute("update records set record = cast(? as text)", (damaged,))
    database.close()
    said(0, "results", "--store", file)
