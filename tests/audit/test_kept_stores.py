"""Every store in benchmarks/records is consistent."""

from pathlib import Path

import pytest

from cubemesh.api.audit import audit_store
from stored_benchmarks import RECORDS

STORES = sorted(RECORDS.glob("*.sqlite"))


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_a_kept_store_is_consistent(path: Path) -> None:
    assert audit_store(store=path).inconsistencies == ()
