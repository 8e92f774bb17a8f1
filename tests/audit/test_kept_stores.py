"""Every store in benchmarks/records is consistent."""

import shutil
from pathlib import Path

import pytest

from cubemesh.api.audit import audit_store

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
STORES = sorted(RECORDS.glob("*.sqlite"))


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_a_kept_store_is_consistent(path: Path, tmp_path: Path) -> None:
    copy = shutil.copy(path, tmp_path)  # opening a store upgrades it
    assert audit_store(store=copy).inconsistencies == ()
