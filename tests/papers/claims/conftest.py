"""The verdict of a claim, by its id."""

from collections.abc import Callable

import pytest

from cubemesh.papers.claims import check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import Machine, RunRecord, Verdict

CLAIMS = {claim.id: claim for claim in claims()}


@pytest.fixture
def verdict() -> Callable[..., Verdict]:
    def check(
        claim_id: str, records: tuple[RunRecord, ...], machine: Machine | None = None
    ) -> Verdict:
        return check_records(CLAIMS[claim_id], Evidence(records=records, machine=machine))

    return check
