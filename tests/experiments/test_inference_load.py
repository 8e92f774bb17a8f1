import dataclasses

import pytest

from cubemesh.experiments.inference_load import EXPERIMENT, LIMIT_FACTOR, Settings, searches
from cubemesh.experiments.registry import Context
from cubemesh.schema import Figure, InferLoad, ProgramSettings, RunSpec, Status
from cubemesh.schema.record import LOAD_TEST_VALID

ONE = Settings(networks=("little-cnn",), frameworks=("openvino",))


def of_test(record_of, spec, *, kept=True, p99_ms=4.0, rate=1000.0, **more):
    record = record_of(spec, step_s=spec.batch_per_device / rate, **more)
    if not record.ok:
        return record
    figures = {
        **record.figures,
        "latency_p50_s": Figure(value=p99_ms / 2e3, unit="s"),
        "latency_p99_s": Figure(value=p99_ms / 1e3, unit="s"),
        LOAD_TEST_VALID: Figure(value=float(kept), unit=""),
    }
    return dataclasses.replace(record, figures=figures)


@pytest.fixture
def machine_of(record_of):
    """A machine that keeps the limit up to some requests per second."""

    def answering(capacity):
        def answer(spec):
            work = spec.work
            kept = work.scenario != "server" or work.requests_per_s <= capacity
            return of_test(record_of, spec, kept=kept)

        return answer

    return answering


def server(rate, **fields):
    work = InferLoad(
        network="little-cnn",
        batch_per_device=1,
        scenario="server",
        requests_per_s=rate,
        latency_limit_s=0.012,
    )
    return RunSpec(work=work, program=ProgramSettings(framework="openvino"), **fields)


@pytest.mark.parametrize("capacity", [150, 480, 700, 930, 2000])
def test_the_largest_rate_is_enclosed_within_seven_percent(capacity, machine, play, machine_of):
    planned, records = play(EXPERIMENT.plan(ONE, Context(machine=machine)), machine_of(capacity))
    assert [s.work.scenario for s in planned[:2]] == ["single-stream", "offline"]
    assert all(s.work.scenario == "server" for s in planned[2:])
    limits = {s.work.latency_limit_s for s in planned[2:]}
    assert sorted(limits) == pytest.approx([LIMIT_FACTOR * 0.004])
    (search,) = searches(records)
    assert search.rate.value <= capacity <= search.rate.high
    assert search.rate.high / search.rate.value <= 1.07


def test_a_limit_that_no_rate_keeps_ends_the_search(machine, play, machine_of):
    planned, records = play(EXPERIMENT.plan(ONE, Context(machine=machine)), machine_of(0))
    assert min(s.work.requests_per_s for s in planned[2:]) >= 50
    answer = EXPERIMENT.answer(ONE, records)
    assert [f.code for f in answer.findings] == ["no-rate"]


def test_a_given_limit_and_batch(machine, play, machine_of):
    settings = dataclasses.replace(ONE, limit=0.05, batch_sizes=(8,))
    planned, records = play(EXPERIMENT.plan(settings, Context(machine=machine)), machine_of(500))
    assert {s.work.latency_limit_s for s in planned[2:]} == {0.05}
    assert [s.batch_per_device for s in planned[:3]] == [1, 8, 8]
    (search,) = searches(records)
    assert search.single is not None
    assert search.title == "OpenVINO, fp32, at most 8 together"


def test_nothing_is_searched_where_an_engine_is_absent(machine, play, record_of):
    def absent(spec):
        return of_test(record_of, spec, status=Status.NOT_INSTALLED, message="pip install …")

    planned, records = play(EXPERIMENT.plan(ONE, Context(machine=machine)), absent)
    assert len(planned) == 2
    answer = EXPERIMENT.answer(ONE, records)
    assert [f.code for f in answer.findings] == ["failed-run"]
    assert answer.tables == ()


def test_a_rate_above_one_that_failed_does_not_count(record_of):
    records = [
        of_test(record_of, server(100)),
        of_test(record_of, server(200), kept=False, p99_ms=90),
        of_test(record_of, server(300)),
    ]
    (search,) = searches(records)
    assert (search.rate.value, search.rate.high) == (100, 200)
    answer = EXPERIMENT.answer(ONE, records)
    assert answer.findings[0].code == "largest-rate"
    assert "serves 100 requests/s with p99 within 12 ms, and not 200" in answer.findings[0].text
