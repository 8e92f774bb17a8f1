"""The answer of `layouts`, from scripted records."""

import dataclasses

import pytest

from answers import codes, column, findings, in_order, texts, values
from cubemesh.errors import UsageError
from cubemesh.experiments.layouts import report
from cubemesh.experiments.layouts.experiment import (
    EXPERIMENT,
    LAYOUTS,
    Settings,
    data_by_context,
    data_by_stages,
    data_by_tensor,
)
from cubemesh.experiments.registry import Context
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema import Figure, Gpu, Part, Rank, Status

DIVIDING = ("tensor-parallel", "context-parallel")
STEPS_S = {
    "none": 0.010,
    "all-reduce": 0.012,
    "sharded-optimizer": 0.014,
    "sharded-gradients": 0.0125,
    "fully-sharded": 0.013,
    "tensor-parallel": 0.016,
    "context-parallel": 0.015,
    "pipeline": 0.020,
    "hybrid": 0.018,
}
WAITS = {"pipeline_wait": 30.0, "pipeline_bubble": 20.0, "pipeline_imbalance": 7.0}
WAITS |= {"pipeline_transfer": 3.0}
GPU = Gpu(index=0, uuid="GPU-0", name="NVIDIA H200", memory_bytes=141_000_000_000)


@pytest.fixture
def measured(record_of):
    """A record whose step takes what its strategy takes; what is not computation is exposed."""

    def make(spec, device="cpu", name=""):
        if spec.program.sync == "hybrid":
            return record_of(spec, status=Status.UNSUPPORTED, message="no chain of segments")
        if spec.program.sync in DIVIDING and spec.work.network != "gpt2":
            return record_of(spec, status=Status.UNSUPPORTED, message="no pair of linear layers")
        devices, step_s = spec.placement.devices, STEPS_S[spec.program.sync]
        record = record_of(spec, step_s=step_s / devices)
        parts = (
            Part(name="compute", seconds=0.010, method=""),
            Part(name="exposed_communication", seconds=step_s - 0.010, method=""),
        )
        more = {"peak_memory_bytes": Figure(value=2.0**30 * (2 + step_s), unit="B")}
        kinds = ("weights", "gradients", "optimizer", "activations")
        more |= {f"memory_{kind}_bytes": Figure(value=2.0**20, unit="B") for kind in kinds}
        if spec.program.sync == "pipeline":
            more |= {n: Figure(value=value, unit="%") for n, value in WAITS.items()}
        ranks = tuple(
            Rank(rank=n, host="h", device=device, device_name=name, outcome=record.outcome)
            for n in range(devices)
        )
        profiled = spec.budget.attribution
        return dataclasses.replace(
            record,
            figures={**record.figures, **more},
            ranks=ranks,
            parts=parts if profiled else (),
            rank_parts=(parts,) * devices if profiled and devices > 1 else (),
        )

    return make


def test_every_layout_is_a_strategy_that_trains_on_the_devices(machine, play, measured):
    assert {entry.sync for entry in LAYOUTS.values()} <= set(STRATEGIES)
    planned, _ = play(EXPERIMENT.plan(Settings(devices=(4,)), Context(machine=machine)), measured)
    assert planned[0].placement.devices == 1
    assert [s.program.sync for s in planned[1:]] == [entry.sync for entry in LAYOUTS.values()]
    assert {s.global_batch for s in planned[1:]} == {4 * 64}
    assert {s.work.optimizer for s in planned} == {"adamw"}
    profiled = {s.program.sync: s.budget.attribution for s in planned}
    assert profiled["fully-sharded"]
    assert not profiled["pipeline"]


@pytest.mark.parametrize(("devices", "stages"), [(2, []), (4, [2]), (6, [2, 3]), (8, [2, 4])])
def test_pipelines_and_groups_that_are_replicas_divide_the_devices(devices, stages):
    assert [mesh["pipeline_stages"] for mesh in data_by_stages(devices)] == stages
    assert [mesh["tensor_parallel_size"] for mesh in data_by_tensor(devices)] == stages
    assert [mesh["context_parallel_size"] for mesh in data_by_context(devices)] == stages


def test_the_fastest_is_named_and_why_the_others_lose(machine, play, measured):
    settings = Settings(networks=("resnet-18",), devices=(4,), batch_sizes=(64,))
    _, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), measured)
    answer = EXPERIMENT.answer(settings, sent)
    assert codes(answer) == [
        "fastest-layout",
        *["slower-layout"] * 4,
        *["failed-run"] * 5,
    ]
    fastest = answer.findings[0]
    assert in_order(fastest.text, "4 devices", "all-reduce, data=4", "21,333 samples/s")
    lost = {f.unit: f.text for f in findings(answer, "slower-layout")}
    zero1 = lost["%: sharded-optimizer, data=4"]
    assert in_order(zero1, "0.86", "exposed communication takes 2 ms more of a step of 14 ms")
    near = lost["%: sharded-gradients, data=4"]
    assert in_order(near, "reaches 0.96", "exposed communication takes 0.5 ms more")
    piped = lost["%: pipeline, stages=4"]
    assert in_order(piped, "0.60", "30.0 %", "20.0 % bubble", "7.0 % imbalance", "3.0 % sending")
    assert in_order(answer.findings[-1].text, "hybrid, data=2 × stages=2", "no chain of segments")
    table = answer.tables[0]
    rows = {name: n for n, name in enumerate(texts(table, "layout"))}
    assert next(iter(rows)) == "one device"
    assert values(table, "step")[rows["fully-sharded, data=4"]] == pytest.approx(13)
    exposed = values(table, "communication or wait")
    assert exposed[rows["fully-sharded, data=4"]] == pytest.approx(100 * 3 / 13)
    assert exposed[rows["pipeline, stages=4"]] == 30
    forecast = values(table, "forecast")
    alone = values(table, "throughput")[0]
    assert 0 < forecast[rows["pipeline, stages=4"]] < 4 * alone * 16 / (16 + 3), "the bubble"
    assert forecast[rows["one device"]] is None
    needs = values(table, "memory, forecast")
    assert needs[rows["fully-sharded, data=4"]] < needs[rows["all-reduce, data=4"]]
    kinds = answer.tables[1]
    own = values(kinds, "weights, forecast")
    assert own[rows["fully-sharded, data=4"]] == pytest.approx(
        own[rows["one device"]] / 4, rel=0.01
    )
    assert column(kinds, "forecast error")[0].value < 0


def test_transformers_on_gpus_have_the_forecast_of_the_datasheet(machine, play, measured):
    gpus = dataclasses.replace(machine, gpus=(GPU,) * 2)
    settings = Settings(
        networks=("gpt2",),
        devices=(2,),
        layouts=("data", "zero-3", "tensor", "pipeline", "context"),
    )
    planned, sent = play(
        EXPERIMENT.plan(settings, Context(machine=gpus)),
        lambda spec: measured(spec, "cuda:0", "NVIDIA H200"),
    )
    assert {s.program.precision for s in planned} == {"bf16"}
    answer = EXPERIMENT.answer(settings, sent)
    assert report.NOTE_BF16 in answer.notes
    assert answer.tables[0].columns[2].unit == "tokens/s"
    forecast = dict(
        zip(texts(answer.tables[0], "layout"), values(answer.tables[0], "forecast"), strict=True)
    )
    context = forecast["context-parallel, context=2"]
    assert context is not None
    assert 0 < context < (forecast["all-reduce, data=2"] or 0)
    sheet = values(answer.tables[0], "datasheet")
    assert all(rate is not None and rate > 0 for rate in sheet)
    rows = dict(zip(texts(answer.tables[0], "layout"), answer.tables[0].rows, strict=True))
    assert "tensor-parallel, tensor=2" in rows
    needs = values(answer.tables[0], "memory, forecast")
    divided = needs[list(rows).index("tensor-parallel, tensor=2")]
    assert needs[list(rows).index("fully-sharded, data=2")] < divided + 2 < needs[0] + 2
    shared = needs[list(rows).index("context-parallel, context=2")]
    kinds = answer.tables[1]
    by_kind = {n: values(kinds, f"{n}, forecast") for n in ("weights", "activations and others")}
    both = texts(kinds, "layout")
    data, context = (
        both.index(f"{n}=2") for n in ("all-reduce, data", "context-parallel, context")
    )
    assert by_kind["weights"][data] == by_kind["weights"][context]
    assert needs[list(rows).index("all-reduce, data=2")] < shared, "all keys and values"
    (searched,) = findings(answer, "forecast-layout")
    assert in_order(searched.text, "predict --search", "dp=2", "tokens/s")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"layouts": ("zero-4",)}, "zero-4"),
        ({"layouts": ()}, "name one"),
        ({"batch_sizes": (0,)}, "1 or more"),
        ({"devices": (0,)}, "1 or more"),
    ],
)
def test_wrong_settings_are_refused(given, why):
    with pytest.raises(UsageError, match=why):
        Settings(**given)
