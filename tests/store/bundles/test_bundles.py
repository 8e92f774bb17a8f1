"""Share bundles: what goes in comes out once, and damaged or hostile ones are refused whole."""

import base64
import hashlib
import io
import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

import report_sample
from cubemesh.errors import DataError, StoreError, UsageError
from cubemesh.schema import ExperimentRun
from cubemesh.store import Store
from cubemesh.store.bundles import bundle_file
from cubemesh.store.bundles.bundle_file import Part
from cubemesh.store.bundles.contents import contents_of, merge, to_parts
from cubemesh.store.json_text import to_text
from cubemesh.store.spool import Spooled

PAGE = "<!doctype html>\n<html><body>\n<p>a page</p>\n</body>\n</html>\n"
TRACE = b"\x00a trace\xff" * 100


def write(path: Path, parts: dict[str, Part]) -> Path:
    bundle_file.write(path, PAGE, parts, version="0.1.0", made_utc="2026-01-01T00:00:00+00:00")
    return path


@pytest.fixture
def machine():
    return report_sample.machine()


@pytest.fixture
def filled(store: Store, saving, machine):
    """A store of two runs, the first with a file, and the experiment run that they answer."""
    store.save_machine(machine)
    records = []
    for number in range(2):
        record = saving.make_record(number, machine_id=machine.machine_id)
        if number == 0:
            path = store.attach(record.run_id, "trace.json", io.BytesIO(TRACE))
            record = replace(record, artifacts={"trace": path})
        store.save(record, [saving.make_series()])
        records.append(record)
    run = ExperimentRun(
        experiment_run_id="e1",
        experiment="minibatch",
        machine_id=machine.machine_id,
        started_utc="2026-01-01T00:00:00+00:00",
        run_ids=tuple(r.run_id for r in records),
        complete=True,
    )
    store.save_experiment_run(run)
    return store, records, run


@pytest.fixture
def bundle(filled, machine, tmp_path: Path) -> Path:
    store, records, run = filled
    return write(
        tmp_path / "b.html", to_parts(store, [r.run_id for r in records], [machine], [run])
    )


@pytest.fixture
def other(new_location):
    """An empty store."""
    with Store.open(new_location("other")) as opened:
        yield opened


def test_what_was_bundled_is_stored_elsewhere_and_once(bundle, filled, other, machine):
    store, records, run = filled
    read = bundle_file.read(bundle)
    merged = merge(other, read)
    assert merged.new == tuple(r.run_id for r in records)
    again = merge(other, read)
    assert (again.new, again.known) == ((), merged.new)
    found = other.records()
    assert [replace(r, artifacts={}) for r in found] == [replace(r, artifacts={}) for r in records]
    assert other.series(records[0].run_id) == store.series(records[0].run_id)
    assert other.experiment_runs() == [run]
    assert other.machine(machine.machine_id) == machine
    with other.open_artifact(found[0], "trace") as file:
        assert file.read() == TRACE
    other.check()


@pytest.mark.parametrize("database", ["sqlite"])
def test_paths_of_the_origin_are_left_out(bundle, filled, tmp_path):
    held = contents_of(bundle_file.read(bundle)).runs[0]
    assert held.record.artifacts == {"trace": "trace.json"}
    assert all(
        str(tmp_path).encode() not in data for data in bundle_file.read(bundle).parts.values()
    )


@pytest.mark.parametrize("database", ["sqlite"])
def test_files_can_be_left_out(filled, machine, other, tmp_path):
    store, records, _ = filled
    parts = to_parts(store, [records[0].run_id], [machine], [], files=False)
    merge(other, bundle_file.read(write(tmp_path / "b.html", parts)))
    assert other.open_artifact(other.record(records[0].run_id), "trace") is None


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_stored_run_and_machine_are_never_changed(bundle, other, filled, machine):
    _, records, _ = filled
    newer = replace(machine, unknown=())
    other.save_machine(newer)
    other.save(replace(records[1], elapsed_s=99.0, artifacts={}))
    with pytest.raises(DataError, match="nothing was imported"):
        merge(other, bundle_file.read(bundle))
    assert [r.elapsed_s for r in other.records()] == [99.0]
    assert other.machine(machine.machine_id) == newer
    assert other.experiment_runs() == []


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize("forged", [{"experiment": "scaling"}, {"started_utc": "2019-01-01"}])
def test_a_stored_answer_is_never_replaced(filled, other, machine, tmp_path, forged):
    store, _, run = filled
    first = replace(run, run_ids=run.run_ids[:1], complete=False)
    parts = to_parts(store, first.run_ids, [machine], [first])
    merge(other, bundle_file.read(write(tmp_path / "first.html", parts)))
    parts = to_parts(store, run.run_ids, [machine], [replace(run, **forged)])
    with pytest.raises(DataError, match="another answer"):
        merge(other, bundle_file.read(write(tmp_path / "forged.html", parts)))
    assert other.experiment_runs() == [first]
    assert len(other.records()) == 1


@pytest.mark.parametrize("database", ["sqlite"])
def test_an_interrupted_import_goes_on(bundle, other, filled):
    """The file was written, its record was not."""
    _, records, _ = filled
    other.attach(records[0].run_id, "trace.json", io.BytesIO(TRACE))
    merge(other, bundle_file.read(bundle))
    with other.open_artifact(other.record(records[0].run_id), "trace") as file:
        assert file.read() == TRACE


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_later_bundle_adds_runs_to_an_experiment_run(filled, other, machine, tmp_path):
    store, _, run = filled
    first = replace(run, run_ids=run.run_ids[:1], complete=False)
    for number, own in enumerate((first, run, first)):
        parts = to_parts(store, own.run_ids, [machine], [own])
        merge(other, bundle_file.read(write(tmp_path / f"{number}.html", parts)))
    assert other.experiment_runs() == [run]
    assert len(other.records()) == 2


@pytest.mark.parametrize("database", ["sqlite"])
def test_every_flipped_byte_is_found(bundle):
    data = bundle.read_bytes()
    places = {*range(0, len(data), max(1, len(data) // 60)), *range(len(data) - 100, len(data), 3)}
    for place in sorted(places):
        bundle.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataError):
            bundle_file.read(bundle)
    for end in sorted(places):
        bundle.write_bytes(data[:end])
        with pytest.raises(DataError):
            bundle_file.read(bundle)


def forged(bundle: Path, change) -> Path:
    """The bundle with its manifest and lines changed, and a checksum that is right again."""
    data = bundle.read_bytes()
    head, opening, tail = data.partition(bundle_file._OPENING)
    manifest, *lines = tail.removesuffix(bundle_file._CLOSING).split(b"\n")
    listed = json.loads(manifest)
    lines = change(listed, lines[:-1]) or lines[:-1]
    body = head + opening + b"\n".join([json.dumps(listed).encode(), *lines, b""])
    digest = hashlib.sha256(body).hexdigest().encode()
    bundle.write_bytes(body + digest + bundle_file._CLOSING)
    return bundle


def bomb(listed, lines):
    """Megabytes of zeros where a few bytes are declared."""
    stream = zlib.compressobj(9)
    packed = b"".join(stream.compress(bytes(1 << 20)) for _ in range(8)) + stream.flush()
    return [base64.b64encode(packed), *lines[1:]]


def renamed(name):
    def change(listed, lines):
        listed["parts"][-2]["name"] = name

    return change


def declared(size):
    def change(listed, lines):
        for part in listed["parts"]:
            part["bytes"] = size

    return change


def doubled(listed, lines):
    listed["parts"].append(listed["parts"][0])
    return [*lines, lines[0]]


def newer(listed, lines):
    listed["schema"] = 2


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (bomb, "does not have the"),
        (declared(1 << 60), "the most are"),
        (declared(-1), "the most are"),
        (declared("9"), "the most are"),
        (declared(bundle_file.MAX_PART_BYTES), "larger than"),
        (renamed("files/../../etc/passwd"), "not the name of a part"),
        (renamed("/etc/passwd"), "not the name of a part"),
        (renamed("files/0123456789ab/..%2f"), "not the name of a part"),
        (renamed("files/0123456789ab/trace.json"), "belongs to no run"),
        (renamed("run-0123456789ab.json"), "holds"),
        (renamed(["x"]), "not the name of a part"),
        (doubled, "two parts"),
        (newer, "upgrade"),
        (lambda listed, lines: listed.clear(), "lists no parts"),
        (lambda listed, lines: listed["parts"].pop() and None, "parts where"),
        (lambda listed, lines: listed.update(parts=[7] * len(lines)), "cannot be read"),
        (lambda listed, lines: [b"!!!!", *lines[1:]], "not compressed"),
        (lambda listed, lines: [base64.b64encode(b"no zlib"), *lines[1:]], "not compressed"),
    ],
)  # fmt: skip
def test_a_forged_bundle_is_refused_before_the_store_is_changed(bundle, other, change, words):
    with pytest.raises(DataError, match=words) as refused:
        merge(other, bundle_file.read(forged(bundle, change)))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert other.records() == []
    assert other.machines() == []


def changed(spooled: Spooled, old: str, new: str) -> dict[str, Part]:
    text = to_text(spooled)
    assert old in text
    return {spooled.file_name: Part.of(text.replace(old, new, 1).encode())}


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"elapsed_s":0.1', '"elapsed_s":-0.1'),
        ('"steps":3', '"steps":[]'),
        ('"started_utc":"2026', '"started_utc":"never'),
        ('"value":240.0', '"value":1e300'),
        ('"record":{', '"record":' + "[" * 5000 + "{"),
        ('"attempt":1', '"attempt":' + "9" * 5000),
    ],
)
def test_a_record_that_no_store_takes_is_refused(saving, other, tmp_path, old, new):
    parts = changed(Spooled(store="", record=saving.make_record()), old, new)
    with pytest.raises(DataError):
        merge(other, bundle_file.read(write(tmp_path / "b.html", parts)))
    assert other.records() == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_file_is_never_written_through_a_link(bundle, other, filled, tmp_path):
    _, records, _ = filled
    outside = tmp_path / "outside"
    outside.mkdir()
    other.files.mkdir(exist_ok=True)
    (other.files / records[0].run_id).symlink_to(outside)
    with pytest.raises(Exception, match="link"):
        merge(other, bundle_file.read(bundle))
    assert list(outside.iterdir()) == []
    assert other.records() == []


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", ".", "missing", "a\0b"):
        with pytest.raises(DataError):
            bundle_file.read(tmp_path / name)
        assert not bundle_file.is_bundle(tmp_path / name)


def test_a_bundle_that_would_be_refused_is_not_written(tmp_path):
    part = replace(Part.of(b"x"), size=bundle_file.MAX_PART_BYTES + 1)
    with pytest.raises(UsageError, match="--no-files"):
        write(tmp_path / "b.html", {"run-ab.json": part})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_the_page_is_the_page(bundle):
    text = bundle.read_text()
    assert text.startswith(PAGE.partition("</body>")[0])
    assert re.findall(r"<script[^>]*>", text) == ['<script type="application/x-cubemesh-bundle">']


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_bundle_named_as_a_store_is_explained(bundle):
    with pytest.raises(StoreError, match="cubemesh import"):
        Store.open(str(bundle), read_only=True)
