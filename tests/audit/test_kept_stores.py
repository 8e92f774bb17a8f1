"""Every store in benchmarks/records is consistent, but for measurements that contradict each other:
those are listed, and their answers show them."""

from pathlib import Path

import pytest

from cubemesh.api.arguments import open_store
from cubemesh.api.audit import audit_store, stored_evidence
from cubemesh.audit.marking import marked
from cubemesh.schema.warning import INCONSISTENT

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
STORES = sorted(RECORDS.glob("*.sqlite"))
CONTRADICTING_RUNS: dict[str, list[tuple[str, str]]] = {
    # Launch-bound steps of 1.3 ms: processes differ by 8 to 10 %, more than the copy of a batch.
    "2026-11-21-one-h200-doc-001": [
        ("above-resident", "fefa2bde7c6a"),
        ("above-resident", "55c56d1ceb48"),
        ("above-resident", "d9445b0377ee"),
        ("above-resident", "adadbbdf8959"),
    ],
    # AlexNet through sockets: profiled steps waited longer for the network than measured ones.
    "2026-11-22-two-h200-links-rates": [("parts-exceed-step", "6f9bed3742d2")],
}
"""Store → (code, first run) of runs that contradict each other as measured."""


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_a_kept_store_is_consistent(path: Path) -> None:
    found = [(one.code, one.where.run_ids[0]) for one in audit_store(store=path).inconsistencies]
    assert found == CONTRADICTING_RUNS.get(path.stem, [])


@pytest.mark.parametrize("name", CONTRADICTING_RUNS)
def test_an_answer_shows_its_contradicting_runs(name: str) -> None:
    with open_store(RECORDS / f"{name}.sqlite", reading=True) as store:
        answers = [(e.answer, e.records) for e in stored_evidence(store) if e.answer is not None]
    shown = [w for a in marked(answers) for w in a.warnings if w.code == INCONSISTENT]
    assert len(shown) == len(CONTRADICTING_RUNS[name])
