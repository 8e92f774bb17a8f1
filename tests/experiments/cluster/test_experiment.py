"""Fat trees of `cluster`: table 1 of the DGX-1 V100 white paper from settings alone."""

import pytest

from answers import in_order
from cubemesh.api.report import latest
from cubemesh.errors import UsageError
from cubemesh.experiments.cluster.experiment import EXPERIMENT, Settings, fabrics
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import Context
from cubemesh.experiments.runner import run_experiment, stored_result
from cubemesh.runs import Executor
from cubemesh.store import Store


def test_table_1_and_full_two_level_trees():
    answer = EXPERIMENT.answer(Settings(), [])
    table = answer.tables[0]
    edr, ethernet = table.rows
    assert [round(c.value, 2) for c in edr[1:4]] == [800, 6200, 1.28]
    assert [round(c.value, 2) for c in ethernet[1:4]] == [40, 310, 5]
    assert edr[4].text == "6,012 GB/s, 1.28 µs"
    assert ethernet[4].text == "310 GB/s, 5 µs"
    bisection = [f for f in answer.findings if f.code == "bisection-bandwidth"]
    assert [round(f.value) for f in bisection] == [6200, 310]
    full = [f for f in answer.findings if f.code == "full-two-level-tree"]
    assert [f.value for f in full] == [128, 144]
    assert in_order(full[0].text, "32", "16", "4")
    assert in_order(full[0].text, "33", "48", "32")
    assert in_order(full[1].text, "36", "16")


def test_a_row_for_each_size():
    answer = EXPERIMENT.answer(Settings(system_counts=(4, 128, 129)), [])
    narrow, wide = answer.tables[1:3]
    rows = {
        row[0].value: [c.value if c.value is not None else c.text for c in row]
        for row in narrow.rows
    }
    assert rows[128][:7] == [128, 1024, 4, 32, "32 of 36", 16, "32 of 36"]
    assert rows[129][3:9] == [33, "32 of 36", 48, "32 of 36", 32, "24 of 36"]
    assert rows[4][3:7] == [1, "16 of 36", "–", "–"]
    beyond = next(r for r in wide.rows if r[0].value == 129)
    assert [c.value for c in (beyond[3], beyond[5])] == [33, 16]
    chart, _ = answer.charts
    assert [line.role for line in chart.lines] == ["forecast", "forecast"]


def test_too_many_systems_have_a_reason():
    answer = EXPERIMENT.answer(Settings(system_counts=(128, 99_999), ports_used=(36,)), [])
    cell, point = answer.tables[1].rows[1][2], answer.charts[0].lines[0].points[1]
    assert (cell.value, point.y) == (None, None)
    assert "three levels" in cell.reason
    assert "three levels" in point.reason


def test_an_oversubscribed_tree_and_a_dragonfly():
    settings = Settings(
        system="knl-7250",
        fabrics=("omni-path:1:5/4", "aries:1"),
        links_between_groups=24,
        system_counts=(16, 128),
        ports_used=(48,),
        compared_at=128,
        max_devices=128,
    )
    answer = EXPERIMENT.answer(settings, [])
    assert answer.title.endswith("on fat trees and dragonflies")
    tree, dragonfly = answer.tables[0].rows
    assert tree[0].text == "1 × Intel Omni-Path, 1.25 : 1 oversubscribed"
    assert tree[2].value == pytest.approx(1280)
    assert dragonfly[2].value == pytest.approx(504)
    assert dragonfly[3].value == pytest.approx(1.5)
    bisection = [f for f in answer.findings if f.code == "bisection-bandwidth"]
    assert in_order(bisection[0].text, "1.25 times as much", "not a ring")
    forecasts = [f for f in answer.findings if f.code == "forecast-throughput"]
    assert len(forecasts) == 2


def test_a_dragonfly_laid_out_in_full():
    settings = Settings(system="knl-7250", fabrics=("aries:1",), system_counts=(128, 768))
    answer = EXPERIMENT.answer(settings, [])
    (full,) = [f for f in answer.findings if f.code == "full-dragonfly-group"]
    assert full.value == 384
    assert in_order(full.text, "384 systems", "96 routers", "960 links")
    table = answer.tables[1]
    assert [column.name for column in table.columns][2:4] == ["systems per router", "first level"]
    assert [row[3].value for row in table.rows] == [32, 192]
    assert "Kim" in answer.notes[0]


def test_four_thousand_devices_of_another_kind():
    settings = Settings(
        system="hgx-h100",
        system_counts=(512,),
        fabrics=("ndr:8",),
        ports_used=(64,),
        compared_at=512,
    )
    answer = EXPERIMENT.answer(settings, [])
    assert answer.tables[1].rows[0][1].value == 4096
    assert len(answer.tables[0].columns) == 4  # without the paper's column


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fabrics": "edrr:4"}, "Nearest: edr"),
        ({"fabrics": "edr"}, "edr:4"),
        ({"fabrics": "edr:20"}, "do not fit a switch"),
        ({"system_counts": "0"}, "0 systems"),
        ({"fabrics": ","}, "between the commas"),
        ({"fabrics": "edr:4:4/5"}, "4/5.* as in 5/4"),
        ({"fabrics": "edr:4:x"}, "'x' must be links down over links up"),
        ({"fabrics": "edr:4:1/0"}, "1/0"),
        ({"fabrics": "aries:1:2"}, "is a dragonfly"),
        ({"links_between_groups": "0"}, "links_between_groups=0"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(UsageError, match=message):
        request(EXPERIMENT, settings)


def test_it_is_stored_and_answered_again_without_runs(tmp_path, machine):
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        with Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor:
            planned = run_experiment(
                EXPERIMENT,
                request(EXPERIMENT, {"system_counts": "128"}),
                Context(machine=machine),
                executor,
                store,
            )
            with pytest.raises(UsageError, match="dgx-9"):
                run_experiment(
                    EXPERIMENT,
                    request(EXPERIMENT, {"system": "dgx-9"}),
                    Context(machine=machine),
                    executor,
                    store,
                )
        assert store.machine(machine.machine_id) is not None
        (experiment_run,) = latest(store.experiment_runs(), [])
        assert stored_result(EXPERIMENT, experiment_run, store).answer == planned.answer


def test_the_compared_design_has_the_fewest_ports_used():
    for used in ((32, 36), (36, 32)):
        compared = fabrics(Settings(ports_used=used))
        assert [design.usable for design in compared[:1]] == [32]
        assert [design.network.name for design in compared] == ["InfiniBand EDR", "10 Gb Ethernet"]
