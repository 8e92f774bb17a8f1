from dataclasses import replace

from answers import column, table, values
from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.published_rows import (
    FORWARD_BACKWARD_TIME,
    nearest_rows,
    nearest_table,
    published_line,
    published_note,
    published_sweep,
)
from cubemesh.experiments.minibatch.experiment import EXPERIMENT, Settings
from cubemesh.papers.published import same_device
from cubemesh.schema import Outcome, Rank, RunSpec, Status, TrainSteps


def spec(batch, network="resnet-50"):
    return RunSpec(work=TrainSteps(network=network, batch_per_device=batch))


def answer(record_of, rate, network="resnet-50"):
    """`minibatch` of a machine that trains `rate` samples/s at every batch size."""
    batches = (8, 16, 32, 64)
    records = [record_of(spec(b, network), step_s=b / rate) for b in batches]
    return EXPERIMENT.answer(Settings(networks=(network,), batch_sizes=batches), records)


def test_nearest_published_rows_have_a_separate_table(record_of):
    found = table(
        answer(record_of, 300.0),
        *("network", "system", "framework", "precision", "batch size", "source"),
    )
    assert 1 <= len(found.rows) <= 5
    assert all(value > 0 for value in values(found, "throughput"))
    assert not any(cell.run_id for row in found.rows for cell in row)


def test_an_unpublished_network_has_no_such_table(record_of):
    made = answer(record_of, 300.0, "little-cnn")
    assert not any(c.name == "source" for t in made.tables for c in t.columns)
    assert [line.role for line in made.charts[0].lines] == ["measured"]


def test_a_published_sweep_is_a_line_within_the_measured_batch_sizes(record_of):
    measured, published = answer(record_of, 300.0).charts[0].lines
    assert (measured.role, published.role) == ("measured", "published")
    assert [p.x for p in published.points] == [8, 16, 32, 64]
    assert published.name == "V100, fp32 (published)"
    notes = answer(record_of, 300.0).notes
    assert any("MXNet docs/faq/perf.md" in note and "MXNet 1.2.0" in note for note in notes)


def test_a_published_line_never_hides_the_measured_one(record_of):
    assert [line.role for line in answer(record_of, 3.0).charts[0].lines] == ["measured"]


def test_findings_do_not_depend_on_published_results(record_of):
    texts = " ".join(f.text for f in answer(record_of, 300.0).findings)
    assert "V100" not in texts


def test_without_a_measurement_nothing_published_is_shown(record_of):
    failed = record_of(spec(8), status=Status.OOM, message="needs more")
    for groups in ([], [Group(8, (failed,))]):
        found = published_sweep("resnet-50", groups)
        assert (found, published_line(found), published_note(found)) == ((), (), ())
        assert nearest_table(nearest_rows("resnet-50", groups), FORWARD_BACKWARD_TIME) == ()


def test_published_rows_above_their_peak_are_shown_with_their_cause(record_of):
    made = answer(record_of, 300.0, "vgg16")
    shares = column(table(made, "source"), "of peak")
    above = [s for s in shares if s.text == "> 100"]
    warnings = [w for w in made.warnings if w.code == "above-peak"]
    assert above
    assert len(warnings) == len(above)
    assert all("Winograd" in w.cause for w in warnings)


def test_published_rows_of_the_measured_device_come_first(record_of):
    def rows(device, **more):
        work = TrainSteps(network="resnet-50", batch_per_device=64, **more)
        rank = Rank(
            rank=0,
            host="h",
            device="cuda:0",
            device_name=device,
            outcome=Outcome(status=Status.OK),
        )
        record = replace(record_of(RunSpec(work=work)), ranks=(rank,))
        return nearest_rows("resnet-50", [Group(64, (record,))])

    assert same_device(rows("NVIDIA H200")[0].device, "H200")
    assert same_device(rows("NVIDIA GeForce RTX 3090")[0].device, "RTX 3090")
    assert rows("NVIDIA H200", image_size=80) == []
    assert rows("NVIDIA H200", image_size=224) != []
