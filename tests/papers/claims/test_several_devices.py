"""Claims about several devices, on simulated records that meet them or not."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.papers.claims import SERVER, check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import (
    ClaimState,
    Collective,
    Figure,
    Gpu,
    Outcome,
    Placement,
    ProgramSettings,
    Rank,
    RunSpec,
    Status,
    Train,
    TrainSteps,
)

CLAIMS = {c.id: c for c in claims()}
HOLDS, FAILS, UNTESTED = (
    ClaimState.HOLDS,
    ClaimState.DOES_NOT_HOLD,
    ClaimState.CANNOT_BE_TESTED_HERE,
)


@pytest.fixture
def ran(record_of):
    """A record of devices whose step takes `times` as long as that of one."""

    def make(network, batch, devices, times, sync="all-reduce", link="auto"):
        spec = RunSpec(
            work=TrainSteps(network=network, batch_per_device=batch),
            placement=Placement(devices=devices, link=link),
            program=ProgramSettings(sync=sync if devices > 1 else "none"),
        )
        record = record_of(spec, step_s=0.01 * times, spread=0.002)
        windows = tuple(
            dataclasses.replace(w, rank=n) for n in range(devices) for w in record.windows
        )
        own = record.figures["throughput_per_s"]
        figure = dataclasses.replace(
            own, value=devices * own.value, low=devices * own.low, high=devices * own.high
        )
        figures = {**record.figures, "throughput_per_s": figure}
        return dataclasses.replace(record, windows=windows, figures=figures)

    return make


def verdict(claim_id, *records):
    return check_records(CLAIMS[claim_id], Evidence(records=records))


def test_a_speed_up_is_compared_with_the_papers(ran):
    one = ran("vgg16", 32, 1, 1.0)
    assert verdict("001-15", one, ran("vgg16", 32, 2, 2 / 1.74, sync=SERVER)).state is HOLDS
    found = verdict("001-15", one, ran("vgg16", 32, 2, 1.01, sync=SERVER))
    assert found.state is FAILS
    assert found.measured.value == pytest.approx(1.98, abs=0.01)
    assert verdict("001-15", one).state is UNTESTED
    assert verdict("001-15", one, ran("vgg16", 64, 2, 1.0)).state is UNTESTED
    other = verdict("001-15", one, ran("vgg16", 32, 2, 2 / 1.74))
    assert (other.state, other.code) == (UNTESTED, "other-strategy")
    assert other.measured.value == pytest.approx(100 * 1.74 / 2)


def test_less_than_half_of_linear_holds_for_each_network_measured(ran):
    slow = [
        r
        for n in ("resnet-50", "little-cnn")
        for r in (ran(n, 32, 1, 1), ran(n, 32, 4, 2.5, sync=SERVER))
    ]
    assert verdict("001-18", *slow).state is HOLDS
    fast = [*slow[:2], ran("little-cnn", 32, 1, 1), ran("little-cnn", 32, 4, 1.1, sync=SERVER)]
    assert verdict("001-18", *fast).state is FAILS


def test_more_devices_that_train_slower_than_fewer(ran):
    def records(eight):
        return [
            ran(network, 32, devices, times, sync=SERVER)
            for network in ("little-cnn", "vgg16")
            for devices, times in ((1, 1.0), (4, 2.0), (8, eight))
        ]

    assert verdict("001-19", *records(5.0)).state is HOLDS
    assert verdict("001-19", *records(2.0)).state is FAILS


def test_two_efficiencies_hold_when_both_do(ran):
    def records(at_64):
        return [
            ran("resnet-50", batch, devices, times)
            for batch, eight in ((32, 1 / 0.9), (64, at_64))
            for devices, times in ((1, 1.0), (8, eight))
        ]

    assert verdict("004-1", *records(1 / 0.94)).state is HOLDS
    assert verdict("004-1", *records(1 / 0.5)).state is FAILS


def test_super_linear_is_over_n_times_one_at_one_global_minibatch(ran):
    one = ran("cifarnet", 192, 1, 1.0)
    assert verdict("004-5", one, ran("cifarnet", 96, 2, 0.45)).state is HOLDS
    assert verdict("004-5", one, ran("cifarnet", 96, 2, 0.6)).state is FAILS


def test_utilization_of_all_ranks_is_a_figure_of_the_papers_gpus(ran, machine):
    def records(name, percents):
        def utilized(devices, percent):
            ranks = tuple(
                Rank(
                    rank=n,
                    host="a",
                    device=name or "cpu",
                    outcome=Outcome(status=Status.OK),
                    utilization=Figure(value=percent + 2 * n - devices + 1, unit="%"),
                )
                for n in range(devices)
            )
            return dataclasses.replace(ran("cifarnet", 192 // devices, devices, 1.0), ranks=ranks)

        return [utilized(n, p) for n, p in zip((2, 4, 8), percents, strict=False)]

    def judged(name, percents):
        gpus = (Gpu(index=0, name=name, uuid="GPU-1"),) if name else ()
        evidence = Evidence(
            records=tuple(records("cuda:0" if name else "", percents)),
            machine=dataclasses.replace(machine, gpus=gpus),
        )
        return check_records(CLAIMS["004-6"], evidence)

    p100 = "Tesla P100-SXM2-16GB"
    assert judged(p100, (87, 84, 63)).state is HOLDS
    assert judged(p100, (87, 84, 80)).state is FAILS
    assert judged(p100, (87, 84)).code == "not-measured"
    assert judged("NVIDIA H200", (87, 84, 63)).code == "other-device"
    assert judged("", (87, 84, 63)).code == "no-gpu"


def test_asynchronous_is_near_linear_or_not(ran):
    one = ran("resnet-50", 32, 1, 1.0)
    near = ran("resnet-50", 32, 2, 1.02, sync="asynchronous")
    assert verdict("001-20", one, near).state is HOLDS
    assert verdict("001-20", one).state is UNTESTED


def test_a_slow_link_slows_many_parameters_more(ran):
    def records(alexnet, googlenet):
        return [
            ran(network, 256, 2, times, link=link)
            for network, slow in (("alexnet", alexnet), ("googlenet", googlenet))
            for link, times in (("auto", 1.0), ("network", slow))
        ]

    assert verdict("004-16", *records(3.0, 1.1)).state is HOLDS
    assert verdict("004-16", *records(1.1, 3.0)).state is FAILS
    assert verdict("004-16").state is UNTESTED
    gain = verdict("003-8", *records(3.0, 1.5))
    assert gain.state is UNTESTED
    assert gain.measured.value == pytest.approx(1.5)


def test_the_size_of_an_all_reduce_needs_no_run():
    found = verdict("004-10")
    assert found.state is HOLDS
    assert found.measured.value == pytest.approx(244, abs=1), "61.1 million parameters"


def test_bandwidths_of_other_devices_are_shown(record_of):
    def swept(operation, bytes_per_s):
        spec = RunSpec(work=Collective(collective=operation), placement=Placement(devices=8))
        figure = Figure(value=bytes_per_s, unit="B/s", method=f"{operation} of 1 GiB")
        return dataclasses.replace(record_of(spec), figures={"bus_bytes_per_s": figure})

    runs = swept("reduce", 130e9), swept("broadcast", 140e9), swept("all-reduce", 300e9)
    found = verdict("002-6", *runs)
    assert found.state is UNTESTED
    assert found.measured.value == pytest.approx(140)
    assert found.code == "other-device"
    assert in_order(found.reason, "broadcast", "1 GiB", "8")
    assert verdict("002-6", runs[2]).code == "not-measured"


def test_every_claim_of_collectives_has_a_check():
    codes = [verdict(c.id).code for c in CLAIMS.values() if c.experiment == "collectives"]
    assert len(codes) == 5
    assert not {"no-check", "no-experiment"} & set(codes)


def trained_on(record_of, devices, scaling, loss):
    work = Train(
        network="little-cnn",
        batch_per_device=128,
        epochs=30,
        learning_rate=1e-4,
        rate_scaling=scaling,
    )
    record = record_of(RunSpec(work=work, placement=Placement(devices=devices)), accuracy=0.5)
    figures = {**record.figures, "validation_loss": Figure(value=loss, unit="")}
    return dataclasses.replace(record, run_id=f"{devices}-{scaling}", figures=figures)


@pytest.mark.parametrize(
    ("constant", "scaled", "state"),
    [((1.0, 2.0), 1.1, HOLDS), ((1.0, 2.0), 1.5, FAILS), ((1.0, 0.9), 1.0, FAILS)],
)
def test_losses_that_grow_unless_the_rate_is_scaled(record_of, constant, scaled, state):
    records = (
        trained_on(record_of, 1, "none", constant[0]),
        trained_on(record_of, 2, "none", constant[1]),
        trained_on(record_of, 2, "linear", scaled),
    )
    found = verdict("001-22", *records)
    assert found.state is state
    assert found.measured.value == pytest.approx(scaled / constant[0])
    short = [
        dataclasses.replace(
            r, spec=dataclasses.replace(r.spec, work=dataclasses.replace(r.spec.work, epochs=4))
        )
        for r in records
    ]
    assert verdict("001-22", *short).code == "other-epochs"
    assert verdict("001-22", *records[:1]).state is UNTESTED


def test_days_to_train_unnamed_networks_are_shown(record_of):
    record = trained_on(record_of, 1, "none", 1.0)
    days = Figure(value=3.0, unit="days")
    record = dataclasses.replace(record, figures={"projected_90_epochs_days": days})
    found = verdict("003-10", record)
    assert (found.state, found.measured.value) == (UNTESTED, 3.0)
