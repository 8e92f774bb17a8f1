"""Where a training of several ranks begins: between threads that play ranks."""

import json
import threading
from dataclasses import replace

import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks.base import Unsupported
from cubemesh.frameworks.exchange import Alone
from cubemesh.measure.kept import KeptLog
from cubemesh.model import Keeping, Placement, RunSpec, Train
from cubemesh.worker import keeping

PATIENCE_S = 10


class Ranks(Alone):
    """A group whose ranks are threads of the test, that meet before every word."""

    def __init__(self, rank, said, met):
        self.rank, self.size, self._said, self._met = rank, 2, said, met

    def agree(self, value):
        return self.share(value)[0]

    def share(self, value):
        self.meet()
        self._said[self.rank] = json.dumps(value)
        self.meet()
        return [json.loads(self._said[rank]) for rank in range(self.size)]

    def meet(self):
        self._met.wait(PATIENCE_S)


def begin(*folders):
    """What each rank meets that keeps its checkpoints in the folder of its own."""
    said, met, found = {}, threading.Barrier(2), {}

    def one(rank):
        spec = RunSpec(
            work=Train(network="little-cnn", batch_per_device=4),
            placement=Placement(devices=2),
            keeping=Keeping(checkpoints=str(folders[rank])),
        )
        spec = replace(spec, program=replace(spec.program, exchange="all-reduce"))
        try:
            found[rank] = keeping.beginning(spec, Ranks(rank, said, met), KeptLog())
        except UsageError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [found[rank] for rank in range(2)]


def test_ranks_that_share_a_folder_begin(tmp_path):
    kept = tmp_path / "kept"
    assert [b.course.done for b in begin(kept, kept)] == [0, 0]
    assert list(kept.iterdir()) == [], "what was tried out is gone"


def test_ranks_on_disks_of_their_own_are_told_so(tmp_path):
    told = begin(tmp_path / "a", tmp_path / "b")
    for folder, message in zip("ab", told, strict=True):
        assert message.startswith(f"checkpoints={tmp_path / folder}: what rank 0 wrote there on ")
        assert message.endswith("Name a folder that all hosts share.")
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("exchange", ["asynchronous", "asynchronous-aware"])
def test_gradients_under_way_are_in_no_checkpoint(tmp_path, exchange):
    spec = RunSpec(
        work=Train(network="little-cnn", batch_per_device=4),
        keeping=Keeping(checkpoints=str(tmp_path)),
    )
    spec = replace(spec, program=replace(spec.program, exchange=exchange))
    with pytest.raises(Unsupported, match="which no checkpoint holds"):
        keeping.beginning(spec, Alone(), KeptLog())
