"""Validation of forecasts: rows, what is left out, claims, stored runs."""

import dataclasses

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.scaling.forecast import forecast_for
from cubemesh.papers.claims.forecasts import FORECASTS, checked_claims
from cubemesh.papers.published import claims
from cubemesh.papers.validation.experiment import EXPERIMENT, Settings, gather, stored
from cubemesh.papers.validation.rows import family, rows
from cubemesh.schema import Answer, Placement, ProgramSettings, Rank, RunSpec, TrainSteps
from cubemesh.store import Store

GIVEN = 955
"""Rows whose style and input are given; of 141 others they are not."""


@pytest.fixture(scope="module")
def answer() -> Answer:
    return EXPERIMENT.answer(Settings(worst=5), [])


def test_every_row_is_forecast_or_has_a_reason() -> None:
    found, left = rows()
    assert len(found) == GIVEN + 141
    assert sum(row.given for row in found) == GIVEN
    counts = {"efficiency": 21, "one device": 6, "accumulated": 73}
    for name, count in counts.items():
        assert sum(len(those) for reason, those in left.items() if name in reason) == count
    assert {row.kind for row in found} == {"convolutional", "transformer", "recurrent"}
    assert all(0 < row.efficiency <= 1.03 for row in found)


@pytest.mark.parametrize(
    "names",
    [
        *(
            ("NVIDIA DGX-1 (8x V100 16GB)", other)
            for other in ("NVIDIA DGX-1 (8x V100 16G)", "NVIDIA DGX-1 16GB (8x V100 16GB)")
        ),
        ("NVIDIA DGX-2 (16x V100 32GB)", "NVIDIA DGX-2 (16x V100 32G)"),
        ("EC2 p2.8xlarge", "EC2 p2.8xlarge x N (8 GPUs/node), distributed"),
        ("C4130 (4 P100-PCIe/node)", "C4130 (4 P100-PCIe/node, InfiniBand)"),
        ("LambdaCloud V100 16GB", "LambdaCloud 8xV100 16GB"),
    ],
)
def test_a_machine_is_one_under_all_its_names(names: tuple[str, str]) -> None:
    assert family(names[0]) == family(names[1])


@pytest.mark.parametrize(
    "names",
    [
        ("NVIDIA DGX-1 16GB (8x V100 16GB)", "NVIDIA DGX-1 32GB (8x V100 32GB)"),
        ("NVIDIA DGX-2 (16x V100 32GB)", "NVIDIA DGX-2H (16x V100 32GB)"),
        ("EC2 p2.8xlarge", "GCE n1-standard-32-k80x8"),
        ("8x H100 80GB SXM5", "8x H100 80GB PCIe Gen5"),
    ],
)
def test_machines_of_other_devices_or_makers_are_others(names: tuple[str, str]) -> None:
    assert family(names[0]) != family(names[1])


def test_errors_by_source_class_system_style_and_devices(answer: Answer) -> None:
    assert [t.columns[0].name for t in answer.tables[:5]] == [
        *("source", "networks", "system", "style", "devices"),
    ]
    for table in answer.tables[:5]:
        assert sum(row[-1].value for row in table.rows) == GIVEN
    assert len(answer.tables[0].rows) == 9
    by_way = {row[0].text: row for row in answer.tables[3].rows}
    assert by_way["ddp through host memory"][-1].value == 42
    assert by_way["tensorflow-parameter-server"][-1].value == 61
    assert any("NCCL_P2P_DISABLE=1" in note for note in answer.notes)
    assert [row[0].value for row in answer.tables[4].rows] == [2, 3, 4, 8, 12, 16, 32, 64]
    nothing = answer.tables[5]
    assert sum(row[-1].value for row in nothing.rows) == GIVEN + 141
    assert sum(row[-2].value for row in nothing.rows) == 141
    assert len(answer.tables[6].rows) == 5


def test_the_headline_is_of_sources_left_out(answer: Answer) -> None:
    """The goals are 5 %, which is missed, 90 % within 12 %, and 88 to 92 % within the band with
    nothing given."""
    found = {f.code: f for f in answer.findings}
    assert answer.findings[0].code == "mean-error"
    assert 5 < (found["mean-error"].value or 0) < 6
    assert 88 <= (found["nothing-given"].value or 0) <= 92
    assert 88 <= (found["rates-within-band"].value or 0) <= 93
    assert (found["mean-error-new-machine"].value or 0) < 6
    (all_rows,) = (t for t in answer.tables if t.title == "Errors by class of network")
    assert all((row[1].value or 0) < 8 for row in all_rows.rows)


def test_scatters_have_every_rate_and_the_line_of_equality(answer: Answer) -> None:
    several, alone = answer.charts
    assert sum(len(line.points) for line in several.lines if line.role == "measured") == GIVEN
    assert several.lines[-1].role == alone.lines[-1].role == "reference"
    assert sum(len(line.points) for line in alone.lines if line.role == "measured") == 406


def test_one_device_from_its_datasheet_and_another_network(answer: Answer) -> None:
    """The goals are 20 % and 8 %; the second is missed."""
    found = {f.code: f for f in answer.findings}
    assert 15 < (found["datasheet-forecasts"].value or 0) < 20
    assert 8 < (found["other-network-measured"].value or 0) < 16
    for title in ("by source", "by architecture"):
        (table,) = (t for t in answer.tables if "datasheet" in t.title and title in t.title)
        assert sum(row[-1].value or 0 for row in table.rows) == 406


def test_claims_that_follow_from_links_are_forecast() -> None:
    assert {c.id for c in claims()} >= set(FORECASTS)
    found = {one.claim.id: one for one in checked_claims()}
    for claim in ("002-8", "002-10", "002-11", "002-16", "004-18"):
        one = found[claim]
        assert one.forecasts == pytest.approx(one.claim.values, rel=1e-3)
    for claim in ("003-3", "003-6", "004-1"):
        one = found[claim]
        assert one.forecasts == pytest.approx(one.claim.values, rel=0.1)


def test_the_bisection_of_the_paper_deducts_the_coding_twice() -> None:
    (one,) = (one for one in checked_claims() if one.claim.id == "002-9")
    assert one.forecasts == (6200,)
    assert one.claim.values == pytest.approx((6200 * 64 / 66,), rel=1e-4)


def test_the_speed_up_of_sixteen_of_dell_emc_is_missed() -> None:
    """The forecast is 8 % too high."""
    (missed,) = (one for one in checked_claims() if one.claim.id == "003-5")
    assert missed.claim.values == (13.5,)
    assert missed.forecasts == pytest.approx((14.6,), rel=0.01)


def test_stored_runs_of_several_devices_and_of_one(record_of, tmp_path) -> None:  # type: ignore[no-untyped-def]
    def run(devices: int, step_s: float):  # type: ignore[no-untyped-def]
        spec = RunSpec(
            work=TrainSteps(network="little-cnn", batch_per_device=64),
            placement=Placement(devices=devices, threads=1),
            program=ProgramSettings(sync="all-reduce" if devices > 1 else "none"),
        )
        record = record_of(spec, step_s=step_s)
        rank = Rank(rank=0, host="here", device="cpu", outcome=record.outcome)
        return dataclasses.replace(record, ranks=(rank,) * devices)

    one, two = run(1, 0.010), run(2, 0.006)
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        store.save(one)
        store.save(two)
        found = gather(Settings(), store)
    assert {r.run_id for r in found} == {one.run_id, two.run_id}
    (pair,) = stored(found)
    assert pair.rate == two.figure("throughput_per_s")
    assert 0 < pair.point.samples_per_s <= 2 * (one.figure("throughput_per_s") or 0)
    assert stored([two]) == ()


def test_worst_must_be_positive() -> None:
    with pytest.raises(UsageError, match="worst=0"):
        Settings(worst=0)


def test_links_of_a_run_must_be_known(record_of) -> None:  # type: ignore[no-untyped-def]
    def run(hosts: tuple[str, ...] = ("here",), **placement):  # type: ignore[no-untyped-def]
        spec = RunSpec(
            work=TrainSteps(network="little-cnn", batch_per_device=64),
            placement=Placement(devices=2, threads=1, **placement),
            program=ProgramSettings(sync="all-reduce"),
        )
        record = record_of(spec, step_s=0.01)
        ranks = tuple(
            Rank(rank=n, host=host, device="cpu", outcome=record.outcome)
            for n, host in enumerate(hosts)
        )
        return dataclasses.replace(record, ranks=ranks)

    one = run()
    assert not isinstance(forecast_for(run(("here", "here")), one), str)
    assert not isinstance(forecast_for(run(hosts=("here",)), one), str)
    for far in (run(("here", "there")), run(hosts=("here", "there"))):
        assert "2 hosts" in str(forecast_for(far, one))
    assert "link=network" in str(forecast_for(run(link="network"), one))


def test_a_captured_run_waits_for_no_launches(record_of) -> None:  # type: ignore[no-untyped-def]
    def launch_s(framework: str, sync: str) -> float:
        spec = RunSpec(
            work=TrainSteps(network="resnet-50", batch_per_device=256),
            placement=Placement(devices=2, threads=1),
            program=ProgramSettings(framework=framework, precision="bf16", sync=sync),
        )
        record = record_of(spec, step_s=0.03)
        ranks = tuple(
            Rank(
                rank=n,
                host="here",
                device=f"cuda:{n}",
                device_name="NVIDIA H200",
                outcome=record.outcome,
            )
            for n in range(2)
        )
        record = dataclasses.replace(record, ranks=ranks)
        found = forecast_for(record, record)
        assert not isinstance(found, str)
        return found.parts_s["launch"]

    for sync in ("all-reduce", "all-reduce-copied", "all-reduce-copied-16"):
        assert launch_s("pytorch-captured", sync) == 0
        assert launch_s("pytorch", sync) > 0
