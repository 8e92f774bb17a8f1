"""A sweep in the output format of nccl-tests, and as rows."""

import dataclasses

import pytest

from cubemesh.api.collectives import Sweeps, sweep_rows
from cubemesh.schema import (
    Collective,
    Outcome,
    Placement,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    SweepPoint,
    warn,
)
from cubemesh.views.collectives import document, lines

OK = Outcome(status=Status.OK)


def record(*points, work=None, outcome=OK):
    spec = RunSpec(work=work or Collective(), placement=Placement(devices=2))
    return RunRecord(
        run_id="r1",
        spec=spec,
        key=RunKey(spec_id=spec.spec_id, machine_id="m", software_id="s", code_version="1"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=outcome,
        ranks=tuple(Rank(rank=i, host="h", device="cpu", outcome=OK) for i in range(2)),
        sweep=points,
        library="gloo",
    )


def point(size, seconds, **fields):
    return SweepPoint(size_bytes=size, count=size // 4, seconds=(seconds,), **fields)


def test_a_line_has_the_columns_of_nccl_tests():
    printed = list(lines(record(point(1 << 20, 0.5e-3, in_place=True, wrong=0))))
    assert printed[0].startswith("# ")
    assert {"all-reduce", "2", "gloo"} <= set(printed[0].split())
    assert printed[1:3] == ["#  Rank  0 on h device cpu", "#  Rank  1 on h device cpu"]
    heading = next(t for t in printed if "size" in t).split()
    assert heading == [
        *("#", "size", "count", "type", "redop", "root"),
        *("time", "algbw", "busbw", "#wrong") * 2,
    ]
    data = next(t for t in printed if not t.startswith("#"))
    assert data.split() == [
        *("1048576", "262144", "float", "sum", "-1"),
        *("N/A",) * 4,
        *("500.00", "2.10", "2.10", "0"),
    ]
    assert printed[-2:] == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 2.09715"]


def test_wrong_and_unchecked_results_differ():
    bad = list(lines(record(point(8, 1e-6, in_place=True, wrong=3))))
    assert bad[-2] == "# Out of bounds values : 3 FAILED"
    unchecked = list(lines(record(point(8, 1e-6, in_place=True))))
    assert unchecked[-2] == "# Out of bounds values : 0 not checked"
    assert unchecked[-3].split()[-1] == "N/A"


def test_a_sweep_that_did_not_run_has_its_reason():
    none = record(outcome=Outcome(status=Status.UNSUPPORTED, message="one device here"))
    last = list(lines(none))[-1]
    assert last.startswith("# not supported")
    assert last.endswith(none.outcome.message)


def test_rows_carry_units_in_their_names():
    work = Collective(collective="all-gather")
    (row,) = sweep_rows(
        record(point(4000, 1e-6, wrong=0), point(4000, 2e-6, in_place=True), work=work)
    )
    assert (row["operation"], row["devices"], row["size"], row["redop"]) == (
        *("all-gather", 2, 4000),
        "none",
    )
    assert row["out_of_place"]["time_us"] == pytest.approx(1.0)
    assert row["out_of_place"]["algbw_gb_per_s"] == pytest.approx(4.0)
    assert row["out_of_place"]["busbw_gb_per_s"] == pytest.approx(2.0)
    assert (row["out_of_place"]["wrong"], row["in_place"]["wrong"]) == (0, None)


def test_the_document_has_rows_pairs_and_how_it_ended():
    work = Collective(collective="send-receive")
    made = record(point(8, 1e-6), point(8, 1e-6, pair=(1, 0), wrong=0), work=work)
    output = document(Sweeps(records=(made,)))
    assert output["schema"] == 1
    assert [r["in_place"] for r in output["rows"]] == [None]
    (pair,) = output["pairs"]
    assert (pair["from"], pair["to"], pair["wrong"]) == (1, 0, 0)
    assert output["runs"][0]["library"] == "gloo"


@pytest.mark.parametrize(
    ("seconds", "size", "shown"),
    [
        (1.0, 8, "8.0e-9"),
        (1.0, 1 << 20, "0.0010"),
        (1e-3, 1 << 20, "1.05"),
        (1e-6, 1 << 20, "1048.6"),
    ],
)
def test_no_bandwidth_is_shown_as_zero(seconds, size, shown):
    data = next(t for t in lines(record(point(size, seconds))) if not t.startswith("#"))
    assert data.split()[6:8] == [shown, shown]
    assert float(shown) == pytest.approx(size / seconds / 1e9, rel=0.06)
    pair = next(
        t for t in lines(record(point(8, 1e-6), point(size, seconds, pair=(0, 1)))) if "Pair" in t
    )
    assert f" {shown} GB/s" in pair


@pytest.mark.parametrize("points", [(), (point(8, 1e-6),)])
def test_warnings_are_shown_and_in_the_document(points):
    warning = warn("oversubscribed", "2 devices shared 1 core.", "Use 2 cores.")
    made = dataclasses.replace(record(*points), warnings=(warning,))
    assert list(lines(made))[-1] == f"# Warning: {warning.cause} {warning.remedy}"
    (ran,) = document(Sweeps(records=(made,)))["runs"]
    assert [(w["code"], w["remedy"]) for w in ran["warnings"]] == [
        ("oversubscribed", warning.remedy)
    ]
