import dataclasses

import pytest

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.papers.claims import CHECKS, judge
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.papers.replay import replay
from cubemesh.schema import ClaimState, warn

UNTOLD = ClaimState.CANNOT_BE_TESTED_HERE
CLAIMS = {claim.id: claim for claim in claims()}
COUNTED = {"004-10"}
"""What is counted from a network, and needs no run."""


def test_every_claim_gets_a_verdict_with_its_reason(verdict):
    for claim in claims():
        found = judge(claim, Evidence(records=()), EXPERIMENTS)
        assert found.state is (ClaimState.HOLDS if claim.id in COUNTED else UNTOLD)
        assert found.reason
    assert "not measured on 2 devices" in verdict("001-15", ()).reason
    assert "experiment seq2seq" in judge(CLAIMS["002-5"], Evidence(records=()), ()).reason
    assert "no check" in judge(CLAIMS["002-1"], Evidence(records=()), ("devices",)).reason
    assert verdict("000-9", ()).reason == "it is a specification, not a measurement"
    assert set(CHECKS) <= set(CLAIMS)


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_verdict_says_when_its_runs_were_disturbed(verdict, steps, machine, disturbed):
    records = steps("little-cnn", {16: 0.016, 64: 0.064 / 2.8, 128: 0.04})
    busy = (warn("busy-host", "others", "stop"),) if disturbed else ()
    records = (records[0], dataclasses.replace(records[1], warnings=busy), records[2])
    found = verdict("001-3", records)
    assert found.caveats == (("busy-host",) if disturbed else ())
    assert found.run_id == records[1].run_id
    answer = replay("doc-001", [("minibatch", records)], machine)
    told = [f for f in answer.findings if "were disturbed" in f.text]
    (row,) = [row for row in answer.tables[0].rows if row[0].text == "001-3"]
    assert row[1].text == ("holds, disturbed" if disturbed else "holds")
    assert [f.text.partition(" rests")[0] for f in told] == (["001-3"] if disturbed else [])
