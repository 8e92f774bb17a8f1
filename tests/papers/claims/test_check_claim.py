"""Verdicts of claims: every claim has one, with a reason."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.papers.claims import CHECKS, check_claim
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.papers.replay import replay
from cubemesh.schema import Basis, ClaimState, Gpu, Rank, warn

UNTESTED = ClaimState.CANNOT_BE_TESTED_HERE
CLAIMS = {claim.id: claim for claim in claims()}
WITHOUT_RECORDS = {"004-10"}
"""Claims that follow from a network without a run."""


def verdict(claim_id, records, machine=None):
    return check_claim(CLAIMS[claim_id], Evidence(records=records, machine=machine))


def test_every_claim_has_a_check_and_gets_a_verdict_with_its_reason():
    assert set(CHECKS) == set(CLAIMS)
    for claim_id in CLAIMS:
        found = verdict(claim_id, ())
        settled = found.state is not UNTESTED
        assert found.reason
        assert found.code
        assert found.measured is None or claim_id in WITHOUT_RECORDS
        assert (settled and found.basis is Basis.MEASURED) == (claim_id in WITHOUT_RECORDS)
        assert (found.basis is Basis.FORECAST) <= (found.forecast is not None)
    assert verdict("003-9", ()).code == "other-device"
    assert verdict("001-3", ()).code == "not-measured"


def test_a_claim_about_another_machine_is_judged_by_forecast():
    found = verdict("002-9", ())
    assert (found.state, found.basis) == (ClaimState.HOLDS, Basis.FORECAST)
    assert found.forecast.value == 6200
    slow = verdict("001-2", ())
    assert (slow.state, slow.basis) == (ClaimState.DOES_NOT_HOLD, Basis.FORECAST)
    assert slow.forecast.unit == "images/s"
    rings = verdict("002-6", ())
    assert (rings.state, rings.forecast.high) == (ClaimState.HOLDS, 150)


def test_a_forecast_with_a_wide_band_settles_nothing_and_is_shown():
    found = verdict("003-1", ())
    assert (found.state, found.basis) == (UNTESTED, Basis.MEASURED)
    assert found.forecast.low < CLAIMS["003-1"].values[0] < found.forecast.high
    assert in_order(found.reason, "Xeon E5-2690 v4", "too uncertain")


@pytest.mark.parametrize("claim", ["002-2", "002-3", "002-4", "002-5", "002-7", "003-8"])
def test_a_link_that_is_changed_on_paper_alone_refutes_nothing(claim):
    """The gain depends on how fast one device is, and a peak is not what a link attains."""
    found = verdict(claim, ())
    assert (found.state, found.basis) == (UNTESTED, Basis.MEASURED)
    assert found.forecast.low < CLAIMS[claim].values[0] < found.forecast.high
    assert "too uncertain" in found.reason


def test_a_measured_verdict_precedes_the_forecast(steps, machine):
    gpu = Gpu(index=0, name="Tesla V100-SXM2-16GB", uuid="GPU-0")
    (record,) = steps("resnet-50", {32: 32 / 192})
    ran = Rank(rank=0, host="h", device="cuda:0", outcome=record.outcome)
    record = dataclasses.replace(record, ranks=(ran,))
    found = verdict("001-9", (record,), dataclasses.replace(machine, gpus=(gpu,)))
    assert (found.state, found.basis) == (ClaimState.HOLDS, Basis.MEASURED)
    other = verdict("001-9", (record,), machine)
    assert other.basis is Basis.FORECAST
    assert other.measured.value == pytest.approx(192)


def test_a_quick_run_settles_no_claim(steps, machine):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 2.8})
    evidence = Evidence(records=records, machine=machine)
    assert check_claim(CLAIMS["001-3"], evidence).state is ClaimState.HOLDS
    found = check_claim(CLAIMS["001-3"], dataclasses.replace(evidence, reduced=True))
    assert (found.state, found.code) == (UNTESTED, "reduced")
    assert found.measured.value == pytest.approx(2.8)
    (row,) = [
        row
        for row in replay("doc-001", [("minibatch", records)], machine, reduced={"minibatch"})
        .tables[0]
        .rows
        if row[0].text == "001-3"
    ]
    assert row[1].text == str(UNTESTED)


def test_a_figure_of_the_paper_alone_is_no_confirmation():
    assert verdict("002-12", ()).basis is Basis.SPECIFICATION
    quoted = verdict("001-14", ())
    assert (quoted.state, quoted.basis) == (ClaimState.HOLDS, Basis.PUBLISHED)
    assert "P100" in quoted.reason
    claim = dataclasses.replace(CLAIMS["001-14"], values=(196.0, 144.0))
    assert check_claim(claim, Evidence(records=())).code == "not-published"
    claim = dataclasses.replace(CLAIMS["002-12"], values=(112.0,))
    assert check_claim(claim, Evidence(records=())).state is ClaimState.DOES_NOT_HOLD


@pytest.mark.parametrize("noisy", [False, True])
def test_a_verdict_has_the_caveats_of_its_runs(steps, machine, noisy):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 2.8, 128: 0.04})
    busy = (warn("busy-host", "others", "stop"),) if noisy else ()
    records = (records[0], dataclasses.replace(records[1], warnings=busy), records[2])
    found = verdict("001-3", records)
    assert found.caveats == (("busy-host",) if noisy else ())
    assert found.run_id == records[1].run_id
    answer = replay("doc-001", [("minibatch", records)], machine)
    unreliable = [f for f in answer.findings if f.code == "noisy-claims"]
    (row,) = [row for row in answer.tables[0].rows if row[0].text == "001-3"]
    assert row[1].text == ("holds, noisy" if noisy else "holds")
    assert [f.text.split()[0] for f in unreliable] == (["001-3"] if noisy else [])
