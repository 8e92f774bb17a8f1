import dataclasses

import pytest

from cubemesh.experiments.inference import EXPERIMENT, Settings, engines
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Figure, Infer, Phase, ProgramSettings, RunSpec, Status, Window
from cubemesh.schema.record import Rank


def measured(record_of, framework, batch, p50_ms, *, precision="fp32", **more):
    """A record whose requests take `p50_ms`, and the first one 0.5 s after 2 s of preparation."""
    scenario = more.pop("scenario", "single-stream")
    work = Infer(network="resnet-50", batch_per_device=batch, scenario=scenario)
    program = ProgramSettings(framework=framework, precision=precision)
    record = record_of(RunSpec(work=work, program=program), step_s=p50_ms / 1e3, **more)
    if not record.ok:
        return record
    latency = Figure(value=p50_ms / 1e3, unit="s", low=p50_ms / 1010, high=p50_ms / 990, n=500)
    first = Window(
        phase="warm-up", start_s=0.0, elapsed_s=0.5, steps=1, samples=batch, marks=("first-step",)
    )
    phases = tuple(
        Phase(name=name, rank=0, start_s=0.0, elapsed_s=seconds)
        for name, seconds in (("import", 1.0), ("data", 9.0), ("build", 0.25), ("weights", 0.75))
    )
    return dataclasses.replace(
        record,
        figures={**record.figures, "latency_p50_s": latency},
        windows=(first, *record.windows),
        phases=phases,
    )


def test_every_engine_at_every_batch_size(machine, play, record_of):
    planned, _ = play(EXPERIMENT.plan(Settings(), Context(machine=machine)), record_of)
    found = [(s.batch_per_device, s.program.framework) for s in planned]
    assert found == [(batch, name) for batch in (1, 8, 32) for name in engines()]
    assert {s.work.scenario for s in planned} == {"single-stream"}
    assert {"pytorch", "onnxruntime", "openvino"} <= set(engines())
    assert not {"null", "keras", "pytorch-captured"} & set(engines())
    layouts = {s.program.framework: s.program.layout for s in planned}
    assert (layouts["pytorch"], layouts["openvino"]) == ("nhwc", "nchw")


def test_quick_and_named_settings(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    planned, _ = play(EXPERIMENT.plan(Settings(), quick), record_of)
    assert {(s.work.network, s.batch_per_device) for s in planned} == {
        ("little-cnn", 1),
        ("little-cnn", 8),
    }
    named = Settings(
        networks=("vgg16",),
        frameworks=("pytorch", "onnxruntime"),
        precisions=("fp32", "bf16"),
        batch_sizes=(4,),
        scenarios=("offline", "single-stream"),
    )
    planned, _ = play(EXPERIMENT.plan(named, quick), record_of)
    assert len(planned) == 8
    assert {s.work.scenario for s in planned} == {"offline", "single-stream"}


def test_the_fastest_is_named_with_its_lead(record_of):
    records = [
        measured(record_of, "pytorch", 1, 20),
        measured(record_of, "onnxruntime", 1, 10),
        measured(record_of, "openvino", 1, 8),
        measured(record_of, "pytorch", 32, 200),
        measured(record_of, "onnxruntime", 32, 100),
        measured(record_of, "openvino", 32, 101),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    shortest, highest = answer.findings
    assert (shortest.code, shortest.value) == ("shortest-latency", pytest.approx(8))
    assert "OpenVINO" in shortest.text
    assert "1.25 ± " in shortest.text
    assert "as fast as ONNX Runtime" in shortest.text
    assert (highest.code, highest.value) == ("highest-throughput", pytest.approx(320))
    assert "no significant difference to OpenVINO" in highest.text
    (table,) = answer.tables
    names = [column.name for column in table.columns]
    assert [row[names.index("engine")].text for row in table.rows[:3]] == [
        "OpenVINO",
        "ONNX Runtime",
        "PyTorch eager",
    ]
    assert table.rows[0][names.index("p50")].value == pytest.approx(8)
    assert table.rows[0][names.index("first answer")].value == pytest.approx(2.5)
    assert [chart.name for chart in answer.charts] == ["inference-latency", "inference-throughput"]


def test_an_engine_on_the_cpu_is_named_so_beside_others_on_a_gpu(record_of):
    def ran_on(device, record):
        rank = Rank(rank=0, host="", device=device, outcome=record.outcome)
        return dataclasses.replace(record, ranks=(rank,))

    eager, engine = measured(record_of, "pytorch", 1, 20), measured(record_of, "onnxruntime", 1, 10)
    mixed = EXPERIMENT.answer(Settings(), [ran_on("cuda:0", eager), ran_on("cpu", engine)])
    assert [row[1].text for row in mixed.tables[0].rows] == [
        "ONNX Runtime on the CPU",
        "PyTorch eager",
    ]
    assert "ONNX Runtime on the CPU has the shortest latency" in mixed.findings[0].text
    alike = EXPERIMENT.answer(Settings(), [ran_on("cpu", eager), ran_on("cpu", engine)])
    assert [row[1].text for row in alike.tables[0].rows] == ["ONNX Runtime", "PyTorch eager"]


def test_a_lead_without_an_interval_is_not_judged(record_of):
    records = [measured(record_of, name, 1, p50) for name, p50 in (("pytorch", 20), ("jax", 10))]
    bare = Figure(value=0.01, unit="s", n=20)
    records = [
        dataclasses.replace(r, figures={**r.figures, "latency_p50_s": bare}) for r in records
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert "too few requests to compare it with" in answer.findings[0].text


def test_precisions_and_scenarios_are_not_mixed(record_of):
    records = [
        measured(record_of, "pytorch", 1, 20),
        measured(record_of, "openvino", 1, 15),
        measured(record_of, "openvino", 1, 5, precision="bf16"),
        measured(record_of, "pytorch", 1, 4, scenario="offline"),
        measured(record_of, "openvino", 1, 6, scenario="offline"),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert [t.title for t in answer.tables] == ["single-stream", "offline"]
    found = [(f.code, "bf16" in f.text, round(f.value, 3)) for f in answer.findings]
    assert found == [
        ("shortest-latency", False, 15),
        ("highest-throughput", False, 250),
        ("shortest-latency", True, 5),
        ("highest-throughput", True, 200),
    ]


def test_an_engine_that_is_absent_is_named_once(record_of):
    absent = {"status": Status.NOT_INSTALLED, "message": "pip install 'cubemesh[openvino]'"}
    records = [
        measured(record_of, "pytorch", 1, 20),
        measured(record_of, "openvino", 1, 8, **absent),
        measured(record_of, "pytorch", 8, 100),
        measured(record_of, "openvino", 8, 8, **absent),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    (failed,) = [f for f in answer.findings if f.code == "failed-run"]
    assert failed.text.startswith("OpenVINO, fp32: ")
    assert "pip install 'cubemesh[openvino]'" in failed.text
    assert len(answer.tables[0].rows) == 2


def test_an_engine_that_fails_at_one_batch_size_says_at_which(record_of):
    records = [
        measured(record_of, "pytorch", 1, 20),
        measured(record_of, "pytorch", 256, 9, status=Status.OOM, message="27 GiB"),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert answer.findings[-1].text.startswith("PyTorch eager, fp32, batch size 256: ")


def test_repeats_have_the_range_of_their_percentiles(record_of):
    records = [measured(record_of, "pytorch", 1, p50) for p50 in (10, 12, 11)]
    answer = EXPERIMENT.answer(Settings(), records)
    names = [column.name for column in answer.tables[0].columns]
    cell = answer.tables[0].rows[0][names.index("p50")]
    assert (cell.low, cell.value, cell.high) == pytest.approx((10, 11, 12))
