"""benchmarks/claim_verdicts.py: what a stored replay has, and how many claims it settles."""

import pytest

from stored_benchmarks import RECORDS


@pytest.fixture
def verdicts(script):
    return script("claim_verdicts")


def test_a_replay_is_counted_with_its_verdicts(verdicts):
    stores = [
        RECORDS / "2026-11-26-two-h200-doc-003.sqlite",
        RECORDS / "2026-11-26-one-h200-keras.sqlite",
    ]
    (replay,) = verdicts.replays(stores)
    assert replay == {
        "paper": "003",
        "record": "2026-11-26-two-h200-doc-003.sqlite",
        "machine": "2 of 4 × NVIDIA H200",
        "runs": 15,
        "failed": 7,
        "experiments": 4,
        "complete": 2,
        "claims": 13,
        "with_figure": 2,
        "hold": 2,
        "do_not_hold": 0,
    }


def test_a_processor_is_named_with_its_cores(verdicts):
    (replay,) = verdicts.replays([RECORDS / "2026-11-26-two-cores-doc-003.sqlite"])
    assert replay["machine"] == "2 cores of AMD EPYC"
    assert (replay["runs"], replay["complete"]) == (1, 0)
