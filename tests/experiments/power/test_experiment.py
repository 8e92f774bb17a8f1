"""Power and performance: plan, Pareto front and answer of `power`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import in_order, texts, values
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.power.experiment import BATCHES, EXPERIMENT, Settings
from cubemesh.experiments.power.pareto_front import PowerPoint, PowerSetting, pareto_front
from cubemesh.experiments.power.report import remedy
from cubemesh.experiments.registry import Context, Scale
from cubemesh.papers.claims import check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import (
    ClaimState,
    Figure,
    Gpu,
    Outcome,
    Placement,
    ProgramSettings,
    Rank,
    RunSpec,
    Status,
    TrainSteps,
    Unknown,
)
from cubemesh.store import Store

BOARD = "GPU board (energy counter); not included: CPU package, DRAM, the rest of the machine"
NO_SENSOR = "not measurable: CPU: /sys/class/powercap does not exist: a virtual machine"


def run(record_of, batch, rate, watts=None, *, network="resnet-50", precision="fp32", **more):
    """A record at so many samples/s, drawing so many watts."""
    work = TrainSteps(network=network, batch_per_device=batch)
    placement = Placement(threads=more.pop("threads", None))
    spec = RunSpec(work=work, placement=placement, program=ProgramSettings(precision=precision))
    record = record_of(spec, step_s=batch / rate)
    if watts is None:
        unknown = Unknown(what="energy and power", why=more.pop("why", NO_SENSOR))
        return replace(record, unmeasured=(unknown,))
    method = more.pop("method", BOARD)
    energy = {
        "mean_power_watts": Figure(value=watts, unit="W", method=method),
        "telemetry_cpu_percent": Figure(value=0.3, unit="%"),
    }
    energy |= {name: Figure(value=value, unit="W") for name, value in more.items()}
    return replace(record, figures={**record.figures, **energy})


def test_the_papers_networks_and_batch_sizes_on_a_gpu(machine, play, record_of):
    gpu = replace(machine, gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-1"),))
    context = Context(machine=gpu)
    planned, sent = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert [(s.work.network, s.batch_per_device) for s in planned] == [
        (n, b) for n, batches in BATCHES.items() for b in batches
    ]
    assert {s.budget.seconds for s in planned} == {5.0}
    assert {s.placement.threads for s in planned} == {None}
    assert EXPERIMENT.answer(Settings(), sent).warnings == ()


def test_a_cpu_runs_less_and_also_half_its_cores(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.QUICK)
    planned, sent = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert [(s.work.network, s.batch_per_device, s.placement.threads) for s in planned] == [
        (n, b, t) for n, b2 in (("cifarnet", (12, 24)), ("alexnet", (32, 64))) for b in b2
        for t in (1, None)
    ]  # fmt: skip
    reduced = EXPERIMENT.answer(Settings(), sent).warnings
    assert {w.code for w in reduced} == {"reduced"}
    assert "without googlenet, resnet-50" in reduced[0].cause


def test_every_combination_of_settings(machine, play, record_of):
    settings = Settings(
        networks=("vgg16",), batch_sizes=(8, 8, 16), precisions=("fp32", "bf16"), threads=(1, 2)
    )
    planned, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    assert [(s.batch_per_device, s.program.precision, s.placement.threads) for s in planned] == [
        (b, p, t) for b in (8, 16) for p in ("fp32", "bf16") for t in (1, 2)
    ]
    warnings = EXPERIMENT.answer(settings, sent).warnings
    assert not any("without" in w.cause for w in warnings)


def test_energy_per_sample_and_the_pareto_front(record_of):
    records = [
        run(record_of, 32, 400.0, 300.0),
        run(record_of, 64, 640.0, 400.0),
        run(record_of, 128, 600.0, 450.0),
        run(record_of, 256, 700.0, 700.0),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    card, fastest, line = answer.findings[:3]
    assert [f.code for f in answer.findings[:3]] == [
        "lowest-energy",
        "fastest-setting",
        "pareto-front",
    ]
    assert (card.value, card.unit) == (pytest.approx(1.6), "samples/J")
    assert "batch size 64, fp32" in card.text
    assert "batch size 256, fp32" in fastest.text
    assert fastest.value == pytest.approx(1.6)
    assert "32, 64 and 256" in line.text
    assert (line.value, line.unit) == (3, "of 4 settings")
    (chart,) = answer.charts
    assert chart.kind == "scatter"
    best, measured = chart.lines
    assert [(p.x, p.label) for p in measured.points] == [
        *((300.0, "32"), (400.0, "64"), (450.0, "128"), (700.0, "256"))
    ]
    assert best.role == "reference"
    assert [p.x for p in best.points] == [300.0, 400.0, 700.0]
    assert [row[-1].text for row in answer.tables[0].rows] == ["yes", "yes", "–", "yes"]
    assert BOARD in answer.notes[0]


def on_devices(record_of, devices, rate, watts, batch=64, method=BOARD):
    """A record of several devices: a rank each, with the summed power."""
    record = run(record_of, batch, rate / devices, watts, method=method)
    outcome = Outcome(status=Status.OK)
    ranks = tuple(
        Rank(rank=n, host="a", device=f"cuda:{n}", device_name="NVIDIA H200", outcome=outcome)
        for n in range(devices)
    )
    windows = tuple(replace(w, rank=n) for n in range(devices) for w in record.windows)
    throughput = replace(record.figures["throughput_per_s"], value=rate)
    spec = replace(record.spec, placement=Placement(devices=devices))
    figures = {**record.figures, "throughput_per_s": throughput}
    return replace(record, spec=spec, ranks=ranks, windows=windows, figures=figures)


def test_a_row_and_a_point_for_each_number_of_devices(record_of):
    summed = BOARD.replace("counter)", "counter, summed over 2)")
    records = [
        on_devices(record_of, 1, 640.0, 400.0),
        on_devices(record_of, 2, 1200.0, 800.0, method=summed),
        on_devices(record_of, 4, 1100.0, 1600.0, method=summed.replace("over 2", "over 4")),
    ]
    answer = EXPERIMENT.answer(Settings(devices=(1, 2, 4)), records)
    found = {f.code: f for f in answer.findings}
    assert found["lowest-energy"].value == pytest.approx(1.6)
    assert found["pareto-front"].value == 2
    scaling = found["power-scaling"]
    assert scaling.value == pytest.approx(1100 / 640 / 4)
    assert in_order(scaling.text, "64", "4 devices", "1.72", "4", "0.43")
    (table,) = answer.tables
    assert values(table, "devices") == [1, 2, 4]
    assert values(table, "power") == [400.0, 800.0, 1600.0]
    assert values(table, "samples/J") == pytest.approx([1.6, 1.5, 0.6875])
    assert texts(table, "Pareto front") == ["yes", "yes", "–"]
    assert values(table, "efficiency")[1] == pytest.approx(100 * 1200 / 1280, abs=1e-6)
    best, measured = answer.charts[0].lines
    assert [(p.x, p.label) for p in measured.points] == [
        *((400.0, "1"), (800.0, "2"), (1600.0, "4"))
    ]
    assert [p.x for p in best.points] == [400.0, 800.0]


def test_strong_scaling_divides_the_batch_size(machine, play, record_of):
    cpu = replace(machine.cpu, usable_cores=8)
    context = Context(machine=replace(machine, cpu=cpu))
    settings = Settings(networks=("vgg16",), batch_sizes=(32,), devices=(4, 1, 3), mode="strong")
    planned, sent = play(EXPERIMENT.plan(settings, context), record_of)
    assert [(s.placement.devices, s.batch_per_device, s.program.sync) for s in planned] == [
        (1, 32, "none"),
        (4, 8, "all-reduce"),
    ]
    assert {s.placement.threads for s in planned} == {2}
    table = EXPERIMENT.answer(settings, sent).tables[0]
    assert texts(table, "batch size") == ["32", "32"]


def test_no_device_is_an_error():
    with pytest.raises(UsageError, match="devices=0"):
        Settings(devices=(0, 1))


def test_runs_of_another_machine_are_in_the_same_answer(record_of, tmp_path):
    own = on_devices(record_of, 1, 640.0, 400.0)
    cores = "CPU package (RAPL) + DRAM (RAPL); not included: the rest of the machine"
    other = on_devices(record_of, 1, 30.0, 200.0, method=cores)
    rank = replace(other.ranks[0], device="cpu", device_name="Xeon T", host="b")
    other = replace(other, run_id="b" * 12, ranks=(rank,))
    other = replace(other, key=replace(other.key, machine_id="b" * 16))
    another = replace(
        other, run_id="c" * 12, spec=RunSpec(work=TrainSteps(network="vgg16", batch_per_device=64))
    )
    with Store.open(str(tmp_path / "other.db")) as there:
        for record in (other, another):
            there.save(record, [])
    settings = Settings(stores=(str(tmp_path / "other.db"),))
    with Store.open(str(tmp_path / "own.db")) as store:
        added = EXPERIMENT.gather(settings, store, (own,))
    assert [r.run_id for r in added] == ["b" * 12]
    (table,) = EXPERIMENT.answer(settings, [own, *added]).tables
    assert [name.split(",")[0] for name in texts(table, "setting")] == ["NVIDIA H200", "Xeon T"]
    assert values(table, "samples/J") == pytest.approx([1.6, 0.15])
    assert "other parts" in table.rows[1][-1].reason, "a board and packages are not compared"


def test_without_a_sensor_throughput_and_the_reason_are_shown(record_of):
    records = [run(record_of, 32, 400.0), run(record_of, 64, 640.0)]
    answer = EXPERIMENT.answer(Settings(), records)
    first = answer.findings[0]
    assert first.code == "unknown-power"
    assert "/sys/class/powercap" in first.text
    assert first.value is None
    assert "NVIDIA GPU" in first.remedy
    (chart,) = answer.charts
    assert chart.kind == "bar"
    assert [p.y for p in chart.lines[0].points] == pytest.approx([400.0, 640.0])
    assert [c.name for c in answer.tables[0].columns] == [
        *("network", "batch size", "setting", "images/s")
    ]


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("only root may read /x/energy_uj", "chmod"),
        ("steps were measured for 0.4 s, and 1 s are needed", "seconds=10"),
        ("the program keeps a clock of its own", "framework that computes"),
        ("no powercap", "virtual machine"),
    ],
)
def test_the_remedy_follows_from_the_reason(reason, what):
    assert what in remedy(reason)


def test_a_setting_without_power_has_its_reason(record_of):
    short = "not measurable: steps were measured for 0.4 s, and 1 s are needed"
    records = [run(record_of, 32, 400.0, 300.0), run(record_of, 64, 640.0, why=short)]
    answer = EXPERIMENT.answer(Settings(), records)
    (unknown,) = (f for f in answer.findings if f.code == "unknown-power")
    assert in_order(unknown.text, "resnet-50", "64", "fp32")
    assert "seconds=10" in unknown.remedy
    assert answer.tables[0].rows[1][4].reason == "not measurable"


def test_power_of_other_parts_is_not_compared(record_of):
    package = "CPU package (RAPL); not included: DRAM, the rest of the machine"
    records = [
        run(record_of, 32, 400.0, 300.0),
        run(record_of, 64, 640.0, 400.0),
        run(record_of, 128, 30.0, 90.0, method=package),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert len(answer.charts[0].lines[0].points) == 2
    assert "unknown-power" in {f.code for f in answer.findings}


def test_energy_counter_and_integrated_power_are_compared(record_of):
    near = {"gpu_energy_joules": 1000.0, "gpu_energy_integrated_joules": 1010.0}
    far = {"gpu_energy_joules": 1000.0, "gpu_energy_integrated_joules": 979.0}
    records = [run(record_of, 32, 400.0, 300.0, **near), run(record_of, 64, 640.0, 400.0, **far)]
    found = {f.code: f for f in EXPERIMENT.answer(Settings(), records).findings}
    assert found["energy-agreement"].value == pytest.approx(2.1, abs=0.1)


def test_power_by_part_idle_power_and_failures(record_of):
    parts = {"gpu_power_watts": 350.0, "cpu_package_watts": 50.0, "gpu_idle_watts": 70.0}
    spec = RunSpec(work=TrainSteps(network="resnet-50", batch_per_device=512))
    oom = record_of(spec, status=Status.OOM, message="out of memory: needs 200 GiB")
    records = [run(record_of, 32, 400.0, 400.0, **parts), oom]
    answer = EXPERIMENT.answer(Settings(), records)
    names = [c.name for c in answer.tables[0].columns]
    assert names[4:7] == ["power", "GPU", "CPU"]
    assert answer.tables[0].rows[0][5].value == 350.0
    found = {f.code: f for f in answer.findings}
    assert found["idle-power"].value == 70
    assert "20 %" in found["idle-power"].text
    assert "needs 200 GiB" in found["failed-run"].text
    assert found["sampling-cost"].value == pytest.approx(0.3)


@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=1, max_size=20))
def test_the_pareto_front_is_what_no_setting_dominates(points):
    group = Group(PowerSetting("resnet-50", 1, "fp32", None), ())
    settings = [
        PowerPoint(group, Figure(value=rate, unit="samples/s"), watts, "") for watts, rate in points
    ]
    chosen = pareto_front(settings)

    def beats(a, b):
        better = a.watts < b.watts or a.throughput.value > b.throughput.value
        return a.watts <= b.watts and a.throughput.value >= b.throughput.value and better

    assert not any(beats(a, b) for a in settings for b in chosen)
    for one in settings:
        alike = {(m.watts, m.throughput.value) for m in chosen}
        on = (one.watts, one.throughput.value) in alike
        assert on or any(beats(m, one) for m in chosen)


def test_the_claim_about_the_cost_of_sampling(record_of, machine):
    claim = next(c for c in claims() if c.id == "004-12")
    cheap = run(record_of, 32, 400.0, 300.0)
    found = check_records(claim, Evidence(records=(cheap,), machine=machine))
    assert found.state is ClaimState.HOLDS
    assert found.measured.value == 0.3
    costly = replace(
        cheap, figures={**cheap.figures, "telemetry_cpu_percent": Figure(value=9.0, unit="%")}
    )
    found = check_records(claim, Evidence(records=(cheap, costly), machine=machine))
    assert found.state is ClaimState.DOES_NOT_HOLD
    blind = replace(
        cheap, figures={k: f for k, f in cheap.figures.items() if k != "mean_power_watts"}
    )
    unread = check_records(claim, Evidence(records=(blind,), machine=machine))
    assert unread.state is ClaimState.CANNOT_BE_TESTED_HERE
    nothing = check_records(claim, Evidence(records=(), machine=machine))
    assert nothing.state is ClaimState.CANNOT_BE_TESTED_HERE
