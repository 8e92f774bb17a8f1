"""Claims of section 5.10 of the DGX-1 V100 white paper."""

import dataclasses

import pytest

from cubemesh.papers.claims import check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import Figure, Infer, InferPrecision, ProgramSettings, RunSpec

CLAIMS = {claim.id: claim for claim in claims()}


@pytest.fixture
def verdict(record_of):
    """The verdict on a claim from latencies by engine and batch size, or a run's figures."""

    def latencies(by_engine):
        for engine, by_batch in by_engine.items():
            for batch, (ms, spread) in by_batch.items():
                spec = RunSpec(
                    work=Infer(network="little-cnn", batch_per_device=batch),
                    program=ProgramSettings(framework=engine),
                )
                p50 = Figure(
                    value=ms / 1e3,
                    unit="s",
                    low=(ms - spread) / 1e3,
                    high=(ms + spread) / 1e3,
                    n=400,
                )
                record = record_of(spec)
                yield dataclasses.replace(record, figures={"latency_p50_s": p50})

    def judge(claim, by_engine=None, figures=None):
        if figures is None:
            records = tuple(latencies(by_engine or {}))
        else:
            spec = RunSpec(work=InferPrecision(network="little-cnn", batch_per_device=1))
            records = (dataclasses.replace(record_of(spec), figures=figures),)
        return check_records(CLAIMS[claim], Evidence(records=records))

    return judge


def test_an_optimizing_engine_is_compared_with_the_framework(verdict):
    fast = {"pytorch": {1: (9, 0.1)}, "openvino": {1: (3, 0.1)}, "onnxruntime": {1: (4, 0.1)}}
    assert verdict("002-19", fast).state.value == "holds"
    assert verdict("002-19", fast).measured.value == pytest.approx(3.0)
    slow = {"pytorch": {1: (3, 0.1)}, "openvino": {1: (9, 0.1)}}
    assert verdict("002-19", slow).state.value == "does not hold"
    noisy = {"pytorch": {1: (3, 2)}, "openvino": {1: (2.9, 2)}}
    assert verdict("002-19", noisy).code == "inconclusive"
    assert verdict("002-19", {"pytorch": {1: (3, 0.1)}}).code == "not-measured"
    assert verdict("002-19").code == "not-measured"


def test_choosing_by_time_pays_where_no_engine_is_always_the_fastest(verdict):
    crossing = {
        "openvino": {1: (1, 0.01), 8: (9, 0.01)},
        "onnxruntime": {1: (2, 0.01), 8: (8, 0.01)},
    }
    found = verdict("002-20", crossing)
    assert found.state.value == "holds"
    assert found.measured.value == pytest.approx((9 / 8) ** 0.5)
    always = {
        "openvino": {1: (1, 0.01), 8: (7, 0.01)},
        "onnxruntime": {1: (2, 0.01), 8: (8, 0.01)},
    }
    assert verdict("002-20", always).state.value == "does not hold"
    assert "OpenVINO is the fastest at every batch size" in verdict("002-20", always).reason
    unclear = always | {"onnxruntime": {1: (2, 0.01), 8: (8, 2.0)}}
    assert verdict("002-20", unclear).code == "inconclusive"
    assert "not clearly" in verdict("002-20", unclear).reason
    assert verdict("002-20", {"openvino": {1: (1, 0.01)}}).code == "not-measured"


def front(seconds, lost, samples=5000, right=4000):
    def timed(name, value):
        return {f"{name} seconds": Figure(value=value, unit="s", low=value, high=value)}

    name = "int8 int8 openvino"
    counts = {"samples": samples, "reference right": right, "lost": lost, "gained": 0}
    return {
        **timed("fp32 fp32 openvino", 4e-3),
        **timed(name, seconds),
        **{f"{name} {what}": Figure(value=float(n), unit="") for what, n in counts.items()},
    }


@pytest.mark.parametrize(
    ("seconds", "lost", "faster", "keeps"),
    [
        (1e-3, 0, "holds", "holds"),
        (8e-3, 0, "does not hold", "holds"),
        (1e-3, 400, "does not hold", "does not hold"),
    ],
)
def test_lower_precision_at_kept_accuracy(verdict, seconds, lost, faster, keeps):
    figures = front(seconds, lost)
    assert verdict("002-21", figures=figures).state.value == faster
    assert verdict("002-22", figures=figures).state.value == keeps


def test_samples_that_cannot_tell_settle_nothing(verdict):
    figures = front(1e-3, 1, samples=100, right=95)
    for claim in ("002-21", "002-22"):
        found = verdict(claim, figures=figures)
        assert (found.state.value, found.code) == ("cannot be tested here", "inconclusive")
        assert "these 100 samples cannot tell" in found.reason
    assert verdict("002-21", figures={}).code == "not-measured"
