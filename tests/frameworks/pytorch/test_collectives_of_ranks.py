"""Three real ranks, joined by gloo: every collective, every way, and one that goes wrong.

The ranks run this very file as a script, which prints what each of them found.
"""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.contract.collectives import extent
from cubemesh.frameworks.pytorch import build_collective, join, launch
from cubemesh.schema import Collective
from cubemesh.schema.collective import COLLECTIVES, REDUCING
from script_server import run_script

RANKS = 3
SIZES = (12, 50_000)
CASES = [
    *(Collective(collective=name, data_type="bfloat16") for name in COLLECTIVES),
    *(Collective(collective=name, reduction="prod") for name in REDUCING),
    *(Collective(reduction=op, data_type="double") for op in ("min", "max")),
]
SPOILT = Collective(collective="all-gather")


def wrong(program, work):
    """(size, in place, pair, wrong elements) of everything a program can do."""
    found = []
    for size in SIZES:
        of = extent(work, size, RANKS)
        for in_place in program.places:
            pairs = [(0, 2), (1, 0)] if work.collective == "send-receive" else []
            for pair in (None, *pairs):
                program.lay_out(of, in_place, pair)
                for repetition in (1, 2):
                    program.fill(repetition)
                    program.barrier()
                    program.call()
                    found.append((of.size_bytes, in_place, pair, program.wrong(repetition)))
    return found


def spoilt(group):
    """Elements that are found wrong where the second rank gives what it should not."""
    of = extent(SPOILT, SIZES[1], RANKS)
    program = build_collective(SPOILT, "cpu", 1, of)
    program.lay_out(of, False)
    program.fill(1)
    if group.rank == 1:
        program._given[[5, 100, 101]] += 1
    program.barrier()
    program.call()
    return program.wrong(1)


def run_rank(folder):
    group = join("cpu", 600.0)
    results = []
    for work in CASES:
        program = build_collective(work, "cpu", 1, extent(work, max(SIZES), RANKS))
        results.append(wrong(program, work))
    found = {"results": results, "spoilt": spoilt(group)}
    Path(folder, f"{group.rank}.json").write_text(json.dumps(found))
    group.close()


if __name__ == "__main__":
    sys.exit(1 if launch(run_rank, sys.argv[1], RANKS) else 0)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_script(__file__, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{w.collective}-{w.reduction}" for w in CASES]
)
def test_every_element_is_right_on_every_rank(ranks, index):
    for rank in ranks:
        results = rank["results"][index]
        assert len(results) >= 2 * len(SIZES)
        assert [r for r in results if r[-1]] == []


def test_in_place_and_out_of_place_are_measured_where_torch_offers_them(ranks):
    ways = {
        work.collective: {way for _, way, *_ in ranks[0]["results"][index]}
        for index, work in enumerate(CASES)
    }
    assert ways["all-reduce"] == ways["reduce"] == ways["broadcast"] == {True}
    assert ways["all-gather"] == ways["reduce-scatter"] == {False, True}
    assert ways["gather"] == ways["all-to-all"] == ways["send-receive"] == {False}


def test_every_rank_counts_the_wrong_elements_of_one(ranks):
    assert [rank["spoilt"] for rank in ranks] == [3, 3, 3]
