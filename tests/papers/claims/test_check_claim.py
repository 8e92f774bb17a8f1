"""Verdicts of claims: every claim has one, with a reason."""

import dataclasses

import pytest

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.papers.claims import CHECKS, check_claim
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.papers.replay import replay
from cubemesh.schema import ClaimState, warn

UNTESTED = ClaimState.CANNOT_BE_TESTED_HERE
CLAIMS = {claim.id: claim for claim in claims()}
COUNTED = {"004-10"}
"""Claims that follow from a network without a run."""


def test_every_claim_gets_a_verdict_with_its_reason(verdict):
    for claim in claims():
        found = check_claim(claim, Evidence(records=()), EXPERIMENTS)
        assert found.state is (ClaimState.HOLDS if claim.id in COUNTED else UNTESTED)
        assert found.reason
        assert found.code
    assert verdict("001-15", ()).code == "not-measured"
    nothing = Evidence(records=())
    assert check_claim(CLAIMS["002-5"], nothing, ()).code == "no-experiment"
    assert check_claim(CLAIMS["002-1"], nothing, ("devices",)).code == "no-check"
    assert verdict("000-9", ()).code == "specification"
    assert set(CHECKS) <= set(CLAIMS)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_verdict_has_the_caveats_of_its_runs(verdict, steps, machine, noisy):
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
