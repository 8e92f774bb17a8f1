"""The page that holds forecasts against what is known: rows, halves, claims, stored runs."""

import dataclasses
import re

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.scaling.forecast import forecast_for
from cubemesh.papers.published import claims
from cubemesh.papers.validation.claims import FORECASTS, checked_claims
from cubemesh.papers.validation.experiment import EXPERIMENT, Settings, gather, stored
from cubemesh.papers.validation.rows import halves, rows
from cubemesh.papers.validation.sources import family
from cubemesh.schema import Answer, Placement, ProgramSettings, Rank, RunSpec, TrainSteps
from cubemesh.store import Store


@pytest.fixture(scope="module")
def answer() -> Answer:
    return EXPERIMENT.answer(Settings(worst=5), [])


def test_every_row_is_forecast_or_has_a_reason() -> None:
    found, left = rows()
    assert len(found) == 347
    assert {reason.split(":")[0]: len(those) for reason, those in left.items()} == {
        "fed with real data, whose reading is not modelled": 67,
        "faster than as many of one device": 11,
        "no rate of one device was published beside it": 6,
    }
    assert {row.kind for row in found} == {"convolutional", "transformer", "recurrent"}
    assert all(0 < row.efficiency <= 1.03 for row in found)


def test_no_system_is_in_both_halves() -> None:
    fitted, other = halves(rows()[0])
    assert abs(len(fitted) - len(other)) <= 1
    assert not set(fitted) & set(other)
    assert "HGX H200" in fitted  # whose launches were read off


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
def test_a_machine_is_in_one_half_under_all_its_names(names: tuple[str, str]) -> None:
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


def test_errors_stand_by_class_system_exchange_and_devices(answer: Answer) -> None:
    titles = [t.title for t in answer.tables]
    assert titles[:4] == [
        "Errors by class of network",
        "Errors by system",
        "Errors by exchange",
        "Errors by number of devices",
    ]
    by_class = {row[0].text: row for row in answer.tables[0].rows}
    # On systems that nothing was fitted to; 3.5 % of all of them is the goal.
    assert by_class["convolutional"][4].value < 2.5
    assert by_class["convolutional"][5].value < 6
    judged = [tuple(cell.value for cell in row[4:7]) for row in by_class.values()]
    assert sum(mean * rates for mean, _, rates in judged) / 143 < 3.5
    by_way = {row[0].text: row for row in answer.tables[2].rows}
    assert by_way["all-reduce through the host's memory"][6].value == 24
    assert by_way["all-reduce-16 through the host's memory"][6].value == 12
    assert any("NCCL_P2P_DISABLE=1" in note for note in answer.notes)
    assert [row[0].value for row in answer.tables[3].rows] == [2, 4, 8, 12, 16, 32, 64]
    assert len(answer.tables[4].rows) == 5


def test_scatters_have_every_rate_and_the_line_of_equality(answer: Answer) -> None:
    several, alone = answer.charts
    assert sum(len(line.points) for line in several.lines if line.role == "measured") == 347
    assert several.lines[-1].role == alone.lines[-1].role == "reference"
    told = re.search(
        r"(\d+) of (\d+) published rates of systems that nothing", answer.findings[2].text
    )
    assert told
    within, of = map(int, told.groups())
    assert within / of > 0.9
    (unseen,) = [line for line in several.lines if line.name == "published, other half"]
    assert of == len(unseen.points)
    assert "88 of 93 published rates of one device" in answer.findings[3].text


def test_claims_that_follow_from_links_are_met() -> None:
    assert {c.id for c in claims()} >= set(FORECASTS)
    found = {one.claim.id: one for one in checked_claims()}
    for claim in ("002-8", "002-9", "002-10", "002-11", "002-16", "004-18"):
        one = found[claim]
        assert one.forecasts == pytest.approx(one.claim.values, rel=1e-3)
    for claim in ("003-3", "003-6", "004-1"):
        one = found[claim]
        assert one.forecasts == pytest.approx(one.claim.values, rel=0.1)


def test_document_003s_speed_up_of_sixteen_is_missed() -> None:
    """It was met to 8 % while machines stood in both halves; now it is 11 % too fast."""
    (missed,) = (one for one in checked_claims() if one.claim.id == "003-5")
    assert missed.claim.values == (13.5,)
    assert missed.forecasts == pytest.approx((15.0,), rel=0.01)


def test_stored_runs_of_several_are_held_against_one(record_of, tmp_path) -> None:  # type: ignore[no-untyped-def]
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


def test_nothing_to_list_is_refused() -> None:
    with pytest.raises(UsageError, match="worst=0"):
        Settings(worst=0)


def test_what_joins_the_devices_of_a_run_must_be_known(record_of) -> None:  # type: ignore[no-untyped-def]
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
    assert forecast_for(run(link="network"), one) == "link=network is not modelled"
