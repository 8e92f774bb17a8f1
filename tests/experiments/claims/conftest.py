"""What comes of one claim, by its id."""

from collections.abc import Callable

import pytest

from cubemesh.experiments import EXPERIMENTS
from cubemesh.experiments.claims import judge
from cubemesh.experiments.claims.evidence import Evidence
from cubemesh.model import Machine, RunRecord, Verdict
from cubemesh.results.published import claims

CLAIMS = {claim.id: claim for claim in claims()}


@pytest.fixture
def verdict() -> Callable[..., Verdict]:
    def judged(
        claim_id: str, records: tuple[RunRecord, ...], machine: Machine | None = None
    ) -> Verdict:
        return judge(CLAIMS[claim_id], Evidence(records=records, machine=machine), EXPERIMENTS)

    return judged
