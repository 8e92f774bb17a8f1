"""Forked ranks share a key-value store, and are ended when one of them fails."""

import os
import sys
import time
from pathlib import Path

import pytest

from cubemesh.frameworks.contract.kv_store import connect_store
from cubemesh.frameworks.fork_launcher import launch
from script_server import run_script

RANKS = 3


def share(folder):
    """Every rank sets a value and reads those of all."""
    rank = int(os.environ["RANK"])
    store = connect_store()
    store.put(f"square/{rank}", rank * rank)
    values = [store.get(f"square/{other}", 60.0) for other in range(RANKS)]
    assert store.has("square/0")
    assert not store.has("square/99")
    assert 1 <= store.add("counted") <= RANKS
    Path(folder, f"values-{rank}").write_text(f"{values} {os.environ['WORLD_SIZE']}")


def fail(folder):
    """One rank fails once all run; the others would wait for ever."""
    rank, store = int(os.environ["RANK"]), connect_store()
    if rank == 1:
        for other in (0, 2):
            store.get(f"written/{other}", 60.0)
        os._exit(7)
    Path(folder, str(rank)).write_text(str(os.getpid()))
    store.put(f"written/{rank}", True)
    time.sleep(600)


def run(what, folder):
    """The result of `launch` in a process without threads."""
    return run_script(__file__, what, folder)


def test_ranks_share_values(tmp_path):
    assert run("share", tmp_path) == "{}\n"
    values = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert values == {f"values-{rank}": "[0, 1, 4] 3" for rank in range(RANKS)}


def test_the_failed_rank_is_returned_and_the_others_are_ended(tmp_path):
    assert run("fail", tmp_path) == "{1: 7}\n"
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["0", "2"]
    for path in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


if __name__ == "__main__":
    print(launch({"share": share, "fail": fail}[sys.argv[1]], sys.argv[2], RANKS))
