"""CSV, Parquet and JSON lines, read by pandas and pyarrow: every value is the same after it."""

import csv
import io
import json
import math

import pytest

from cubemesh.exports.record_json import record_json
from cubemesh.exports.table import table_rows, units
from cubemesh.store import Store
from stored_benchmarks import RECORDS

pandas = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def measured():
    """Runs of a real store."""
    with Store.open(str(RECORDS / "2026-11-21-one-h200.sqlite"), read_only=True) as store:
        return tuple(store.records())


def same(value, read):
    """Whether a value was read back as it was, None as a missing one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return bool(pandas.isna(read))
    return read == value


def test_rows_have_settings_figures_and_intervals(runs):
    rows = table_rows(runs)
    assert len({tuple(row) for row in rows}) == 1
    assert rows[1]["learning_rate"] == 0.1 + 0.2
    assert [row["layout"] for row in rows] == ["nchw", "nhwc", "nchw"]
    assert "optimizer" not in rows[0], "it is at its default in every run"
    figure = runs[0].figures["throughput_per_s"]
    assert rows[0]["throughput_per_s"] == figure.value
    assert (rows[0]["throughput_per_s_low"], rows[0]["throughput_per_s_high"]) == (
        figure.low,
        figure.high,
    )
    assert "wall_s_low" not in rows[0], "no run has an interval of it"
    assert rows[2]["throughput_per_s"] is None
    assert [row["loss_scale"] for row in rows] == [None, 1024.5, "dynamic"]
    assert [row["measured_loss_scale"] for row in rows] == [None, 512.0, None]
    assert units(runs)["throughput_per_s_high"] == "samples/s"


def test_no_runs_make_an_empty_table(exported):
    assert table_rows(()) == ()
    assert exported("csv", ()) == b""
    assert parquet.read_table(io.BytesIO(exported("parquet", ()))).num_rows == 0


def test_csv_is_read_back_exactly(runs, exported, measured):
    for records in (runs[:2], measured):
        frame = pandas.read_csv(
            io.BytesIO(exported("csv", records)),
            dtype={"run_id": str},
            keep_default_na=False,
            na_values={"validation_loss": ["nan"]},
        )
        for row, read in zip(table_rows(records), frame.to_dict("records"), strict=True):
            assert list(row) == list(read)
            for name, value in row.items():
                if isinstance(value, float) and not math.isnan(value):
                    assert float(read[name]) == value, name
                elif isinstance(value, int):
                    assert int(float(read[name])) == value, name
                elif value is None:
                    assert read[name] == "" or pandas.isna(read[name]), name


def test_csv_escapes_formulas_and_no_numbers(runs, exported):
    content = exported("csv", runs).decode("utf-8")
    *_, last = csv.DictReader(io.StringIO(content, newline=""))
    assert last["message"].startswith("'=cmd|")
    assert '\n"quoted" \\ <b>' in last["message"]
    assert "\0" not in content
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert rows[1]["below_zero"] == "-1e-17"
    assert float(rows[1]["below_zero_high"]) == 5e-324


def test_parquet_is_read_back_exactly_with_units(runs, exported, measured):
    for records in (runs, measured):
        table = parquet.read_table(io.BytesIO(exported("parquet", records)))
        read = table.to_pylist()
        for row, found in zip(table_rows(records), read, strict=True):
            assert list(row) == list(found)
            for name, value in row.items():
                if name == "started_utc":
                    assert found[name].isoformat() == value.replace(".066", ".066000") or (
                        pandas.Timestamp(value) == found[name]
                    )
                elif name not in ("message", "loss_scale"):
                    assert same(value, found[name]), name
        assert table.schema.field("throughput_per_s_low").metadata == {b"unit": b"samples/s"}
        assert str(table.schema.field("devices").type) == "int64"
    frame = pandas.read_parquet(io.BytesIO(exported("parquet", runs)))
    assert frame["loss_scale"].tolist()[1:] == ["1024.5", "dynamic"], "mixed kinds become text"
    assert str(frame["started_utc"].dt.tz) == "UTC"


def test_json_lines_are_the_records_of_json(runs, exported, measured):
    for records in (runs, measured):
        lines = exported("jsonl", records).decode("ascii").splitlines()
        for record, line in zip(records, lines, strict=True):
            found = json.loads(line, parse_constant=pytest.fail)
            assert (found.pop("schema"), found.pop("kind")) == (1, "record")
            assert found == json.loads(json.dumps(record_json(record)))
    frame = pandas.read_json(
        io.BytesIO(exported("jsonl", measured)), lines=True, precise_float=True
    )
    assert frame["run_id"].tolist() == [r.run_id for r in measured]
    value = measured[0].figures["throughput_per_s"].value
    assert json.loads(lines[0])["throughput_per_s"] == value
