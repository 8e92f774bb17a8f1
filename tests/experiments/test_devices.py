import dataclasses

import pytest

from answers import in_order, texts, values
from cubemesh.errors import DataError, UsageError
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.devices import EXPERIMENT, Settings
from cubemesh.experiments.registry import Context
from cubemesh.experiments.runner import run_experiment, stored_result
from cubemesh.runs import Executor
from cubemesh.schema import (
    Figure,
    Outcome,
    Placement,
    ProgramSettings,
    Rank,
    RunSpec,
    Software,
    Status,
    TrainSteps,
)
from cubemesh.store import Store


@pytest.fixture
def on(record_of):
    """A record of a network on a device of a host."""

    def make(device, step_s, network="resnet-50", batch=32, devices=1, sync=None, **more):
        work = TrainSteps(network=network, batch_per_device=batch)
        spec = RunSpec(
            work=work,
            placement=Placement(devices=devices),
            program=ProgramSettings(sync=sync or ("none" if devices == 1 else "all-reduce")),
        )
        made = record_of(spec, step_s=step_s, **more)
        kind, host, name = device
        rank = Rank(
            rank=0, host=host, device=kind, device_name=name, outcome=Outcome(status=Status.OK)
        )
        return dataclasses.replace(
            made,
            run_id=f"{host}-{kind}-{network}-{batch}".replace(":", "")
            + ("" if devices == 1 else f"-{devices}"),
            ranks=(rank,),
            key=dataclasses.replace(made.key, machine_id=host),
            windows=tuple(
                dataclasses.replace(w, samples=w.samples * devices) for w in made.windows
            ),
            figures={
                name: f.scaled(devices, f.unit) if name == "throughput_per_s" else f
                for name, f in made.figures.items()
            },
        )

    return make


GPU = ("cuda:0", "big", "NVIDIA H200")
CPU = ("cpu", "small", "Xeon T")


def test_a_gpu_compared_with_a_cpu(on):
    records = [on(CPU, 2.0), on(GPU, 0.01), on(CPU, 1.0, "alexnet"), on(GPU, 0.02, "alexnet")]
    answer = EXPERIMENT.answer(Settings(), records)
    (found,) = answer.findings
    assert (found.code, found.value) == ("device-speed-up", pytest.approx(100))
    assert in_order(found.text, "50×", "alexnet", "32", "200×", "resnet-50", "32")
    (table,) = answer.tables
    assert [c.name for c in table.columns] == ["workload", "Xeon T", "NVIDIA H200"]
    assert table.rows[0][2].value == pytest.approx(3200)
    assert len(answer.charts[0].lines) == 2


def gathered(tmp_path, *stores):
    """What `devices` gathers from stores with these records."""
    paths = []
    for number, records in enumerate(stores):
        paths.append(str(tmp_path / f"{number}.sqlite"))
        with Store.open(paths[-1]) as store:
            for record in records:
                store.save(record)
    with Store.open(paths[0]) as store:
        return EXPERIMENT.gather(Settings(stores=tuple(paths[1:])), store)


def test_a_store_of_the_settings_that_cannot_be_read_is_an_error_of_data(tmp_path):
    """A job fails with it; a failure of its own store queues it again."""
    other = tmp_path / "other.sqlite"
    with Store.open(str(tmp_path / "own.sqlite")) as store:
        with pytest.raises(DataError, match=r"(?s)setting `stores`.*no store at"):
            EXPERIMENT.gather(Settings(stores=(str(other),)), store)
        other.write_text("not a database, but long enough to be read as one" * 30)
        with pytest.raises(DataError, match="is not a database"):
            EXPERIMENT.gather(Settings(stores=(str(other),)), store)


def test_one_cpu_against_one_and_four_gpus_of_another_store(on, tmp_path):
    gpus = [on(GPU, 1.0), on(GPU, 1.05, devices=4)]
    answer = EXPERIMENT.answer(Settings(), gathered(tmp_path, [on(CPU, 5.3)], gpus))
    (table,) = answer.tables
    assert {c.name for c in table.columns[1:]} == {"Xeon T", "NVIDIA H200", "4 × NVIDIA H200"}
    assert [row[0].text for row in table.rows] == ["resnet-50 · batch size 32"]
    found = {f.text.partition(" trains")[0]: f.value for f in answer.findings}
    assert found == {
        "NVIDIA H200": pytest.approx(5.3),
        "4 × NVIDIA H200": pytest.approx(4 * 5.3 / 1.05, rel=0.01),
    }  # and not four GPUs with one: that is scaling


def test_machines_with_the_same_numbers_are_compared_number_by_number(on, tmp_path):
    other = ("cuda:0", "other", "NVIDIA A100")
    mine = [on(GPU, 1.0, devices=n) for n in (1, 2, 4)]
    theirs = [on(other, 2.0, devices=n) for n in (1, 2, 4)]
    answer = EXPERIMENT.answer(Settings(), gathered(tmp_path, mine, theirs))
    assert len(answer.findings) == 3
    assert [f.value for f in answer.findings] == [pytest.approx(2.0)] * 3


def test_how_one_machine_scales_is_not_its_question(on, tmp_path):
    assert gathered(tmp_path, [on(GPU, 1.0), on(GPU, 1.0, devices=2)]) == []


def test_other_strategies_and_ranks_of_a_cpu_are_columns_of_their_own(on):
    records = [
        on(CPU, 1.0, devices=2),
        on(GPU, 0.1, devices=2, sync="parameter-server"),
        on(GPU, 0.1, devices=2, sync="none"),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert [c.name for c in answer.tables[0].columns[1:]] == [
        "Xeon T as 2 ranks",
        "2 × NVIDIA H200, parameter-server",
        "2 × NVIDIA H200, no sync",
    ]


def test_samples_per_unit_of_money(on):
    settings = Settings(prices=("h200=2.5", "small=0.25", "A100=9"))
    answer = EXPERIMENT.answer(settings, [on(CPU, 0.8), on(GPU, 0.1)])
    found = {f.code: f for f in answer.findings}
    assert found["cost-effectiveness"].value == pytest.approx(1.25)
    assert found["cost-effectiveness"].text.startswith("Xeon T")
    unused = [f.text for f in answer.findings if f.code == "unused-price"]
    assert ["'A100'" in text for text in unused] == [True], "small is the name of a host"
    money = answer.tables[1]
    assert money.rows[0][1].value == pytest.approx(40 * 3600 / 0.25)


def powered(record, watts, covered):
    """The record with its power and energy."""
    rate = record.figures["throughput_per_s"].value
    method = f"{covered} (read); not included: the rest of the machine"
    energy = {
        "mean_power_watts": Figure(value=watts, unit="W", method=method),
        "samples_per_joule": Figure(value=rate / watts, unit="samples/J", method=method),
    }
    return dataclasses.replace(record, figures={**record.figures, **energy})


def test_cost_of_a_training_and_samples_per_joule(on):
    gpu, cpu = on(GPU, 0.004), on(CPU, 0.4)  # 8,000 and 80 images/s
    records = [powered(cpu, 200.0, "CPU package"), powered(gpu, 500.0, "GPU board")]
    settings = Settings(
        prices=("Xeon=0.2",),
        purchase_prices=("H200=26280",),
        cost=("power_price=0.3", "co2_per_kwh=0.4"),
    )
    answer = EXPERIMENT.answer(settings, records)
    *_, energy, costs = answer.tables
    assert values(energy, "NVIDIA H200") == [pytest.approx(16)]
    assert texts(costs, "device") == ["Xeon T", "NVIDIA H200"]
    assert values(costs, "time") == pytest.approx([400, 4])
    assert values(costs, "energy") == pytest.approx([80, 2])
    assert values(costs, "CO₂") == pytest.approx([32, 0.8])
    assert "90 epochs" in costs.title
    rented, owned = (costs.rows[0][5], costs.rows[1][6])
    assert rented.value == pytest.approx(80)
    assert owned.value == pytest.approx(4 + 0.6)
    assert costs.rows[1][5].reason == "no price"
    found = {f.code: f for f in answer.findings}
    assert found["training-cost"].value == pytest.approx(4.6)
    assert found["energy-efficiency"].value == pytest.approx(40)
    assert in_order(found["energy-efficiency"].text, "H200", "40", "CPU package", "GPU board")


def test_a_number_of_tokens_needs_a_network_of_tokens(on):
    settings = Settings(cost=("tokens=1e9", "price_per_hour=1"))
    images = EXPERIMENT.answer(settings, [on(CPU, 0.8), on(GPU, 0.1)])
    assert len(images.tables) == 1, "nothing is known"
    tokens = EXPERIMENT.answer(settings, [on(d, 1.0, "gpt2") for d in (CPU, GPU)])
    assert values(tokens.tables[-1], "rented") == [pytest.approx(1e9 / 1024 / 32 / 3600)] * 2


def test_without_prices_there_is_no_cost(on):
    answer = EXPERIMENT.answer(Settings(), [on(CPU, 0.8), on(GPU, 0.1)])
    assert len(answer.tables) == 1


@pytest.mark.parametrize("text", ["power_price=free", "price=2"])
def test_invalid_costs(text):
    with pytest.raises(UsageError, match="cost"):
        request(EXPERIMENT, {"cost": text})


def test_four_devices_cost_four_times_as_much(on):
    answer = EXPERIMENT.answer(
        Settings(prices=("h200=2.5", "small=0.25")),
        [on(CPU, 0.8, devices=2), on(GPU, 0.1, devices=4)],
    )
    money = answer.tables[1].rows[0]
    assert money[1].value == pytest.approx(2 * 40 * 3600 / 0.25)  # ranks of one processor
    assert money[2].value == pytest.approx(4 * 320 * 3600 / (4 * 2.5))


@pytest.mark.parametrize("text", ["H200", "H200=", "=2", "H200=-1", "H200=nan", "H200=free"])
def test_invalid_prices(text):
    with pytest.raises(UsageError, match="NAME=PRICE"):
        request(EXPERIMENT, {"prices": text})


def test_devices_of_one_name_are_named_with_their_hosts(on):
    twins = [on(("cpu", "one", "Xeon T"), 1.0), on(("cpu", "two", "Xeon T"), 2.0)]
    answer = EXPERIMENT.answer(Settings(), twins)
    assert [c.name for c in answer.tables[0].columns[1:]] == ["Xeon T, one", "Xeon T, two"]


def test_records_of_another_store_are_imported(on, machine, tmp_path):
    with Store.open(str(tmp_path / "other.sqlite")) as other:
        other.save(on(GPU, 0.01))
        other.save(on(GPU, 0.05, "vgg16"))
    texts = {"stores": str(tmp_path / "other.sqlite")}
    with Store.open(str(tmp_path / "own.sqlite")) as store:
        store.save(on(CPU, 2.0))
        store.save(on(CPU, 2.0, batch=64))
        with Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor:
            for _ in range(2):  # reading it again changes nothing
                answered = run_experiment(
                    EXPERIMENT,
                    request(EXPERIMENT, texts),
                    Context(machine=machine),
                    executor,
                    store,
                )
        assert sorted(r.run_id for r in answered.records) == [
            "big-cuda0-resnet-50-32",
            "small-cpu-resnet-50-32",
        ]
        assert answered.experiment_run.complete
        again = stored_result(EXPERIMENT, answered.experiment_run, store)
        assert again.answer == answered.answer
        assert again.answer.findings[0].value == pytest.approx(200)


def test_workloads_that_differ_in_any_setting_are_separate_rows(on):
    def by(optimizer, device, step_s):
        made = on(device, step_s)
        work = dataclasses.replace(made.spec.work, optimizer=optimizer)
        return dataclasses.replace(made, spec=dataclasses.replace(made.spec, work=work))

    records = [by(o, d, s) for o, s in (("sgd", 1.0), ("adam", 3.0)) for d in (CPU, GPU)]
    (table,) = EXPERIMENT.answer(Settings(), records).tables
    assert [row[0].text for row in table.rows] == [
        "resnet-50 · batch size 32",
        "resnet-50 · batch size 32 · optimizer adam",
    ]
    assert [row[1].value for row in table.rows] == pytest.approx([32, 32 / 3])


def test_no_common_workload_has_a_remedy():
    answer = EXPERIMENT.answer(Settings(), [])
    assert answer.findings[0].code == "no-common-workload"
    assert "stores=PATH" in answer.findings[0].remedy
    assert answer.charts == ()


def test_a_device_that_ran_out_of_memory_is_shown(on):
    failed = on(CPU, 1.0, status=Status.OOM, message="out of memory: 27 GiB")
    answer = EXPERIMENT.answer(Settings(), [failed, on(GPU, 0.1)])
    assert answer.tables[0].rows[0][1].reason == "out of memory"
    (failed,) = (f.text for f in answer.findings if f.code == "failed-run")
    assert "out of memory: 27 GiB" in failed


NEW = Software(
    python="3.11.2",
    system="Debian GNU/Linux 12, Linux 6.1.0",
    packages={"torch": "2.13.0", "numpy": "2.4.6"},
    driver="580.1",
    variables={"NCCL_ALGO": "Ring"},
)
OLD = dataclasses.replace(
    NEW,
    packages={"torch": "2.11.0", "numpy": "2.4.6", "triton": "3.4"},
    driver="570.2",
    variables={},
)


@pytest.fixture
def with_stack(on):
    """A record of `on` under a software stack, on a day."""

    def make(device, step_s, software, day=1, **more):
        record = on(device, step_s, **more)
        version = "none" if software is None else software.packages["torch"]
        return dataclasses.replace(
            record,
            run_id=f"{record.run_id}-{version}",
            started_utc=f"2026-11-{day:02d}T00:00:00+00:00",
            key=dataclasses.replace(record.key, software_id=f"software-{version}"),
            software=software,
        )

    return make


def test_two_stacks_of_one_machine_are_compared_and_their_differences_named(with_stack, tmp_path):
    records = [
        *(with_stack(GPU, 0.02, OLD, 1), with_stack(GPU, 0.01, NEW, 2)),
        with_stack(CPU, 1.0, NEW, 3),
    ]
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        for record in records:
            store.save(record)
        found = EXPERIMENT.gather(Settings(stacks=True), store)
        assert len(found) == 3
        assert len(EXPERIMENT.gather(Settings(), store)) == 2, "only the latest of each device"
    answer = EXPERIMENT.answer(Settings(stacks=True), found)
    names = [column.name for column in answer.tables[0].columns[1:]]
    assert names == ["NVIDIA H200, stack 1", "NVIDIA H200, stack 2", "Xeon T"]
    speed_up = next(
        f for f in answer.findings if f.code == "device-speed-up" and "Xeon" not in f.text
    )
    assert speed_up.value == pytest.approx(2)
    assert in_order(speed_up.text, "stack 2", "stack 1")
    (differ,) = [f for f in answer.findings if f.code == "stack-differences"]
    assert in_order(
        differ.text, "driver 570.2 → 580.1", "torch 2.11.0 → 2.13.0", "triton 3.4 → none"
    )
    assert "numpy" not in differ.text
    table = answer.tables[-1]
    assert [row[1].text for row in table.rows] == ["driver", "torch", "triton", "NCCL_ALGO"]


def test_a_stack_that_was_not_stored_is_unknown(with_stack):
    records = [with_stack(GPU, 0.02, None, 1), with_stack(GPU, 0.01, NEW, 2)]
    answer = EXPERIMENT.answer(Settings(stacks=True), records)
    (unknown,) = [f for f in answer.findings if f.code == "unknown-stack"]
    assert "stack 1" in unknown.text
    assert "--no-cache" in unknown.remedy
    assert len(answer.tables) == 1


def test_a_variable_alone_makes_no_other_stack(with_stack):
    quiet = dataclasses.replace(NEW, variables={})
    records = [with_stack(GPU, 0.02, quiet, 1), with_stack(CPU, 0.01, NEW, 2)]
    same = dataclasses.replace(records[0], software=NEW, run_id="again")
    answer = EXPERIMENT.answer(Settings(stacks=True), [*records, same])
    assert [c.name for c in answer.tables[0].columns[1:]] == ["NVIDIA H200", "Xeon T"]


def test_an_imported_run_is_a_device_of_its_own(with_stack):
    own = with_stack(GPU, 0.02, NEW)
    log = dataclasses.replace(
        with_stack(GPU, 0.01, None), run_id="log", source="log of timm: a.log (SHA-256 0)"
    )
    answer = EXPERIMENT.answer(Settings(), [own, log])
    names = [column.name for column in answer.tables[0].columns[1:]]
    assert names == ["NVIDIA H200", "NVIDIA H200 (log of timm: a.log)"]
    assert answer.findings[0].value == pytest.approx(2)
