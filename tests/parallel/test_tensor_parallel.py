"""Sizes of the mesh of data × tensor parallel; the measured transfers of a group."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.gradient_sync import BUCKET_BYTES, TensorParallelSync
from cubemesh.frameworks.contract.group import SingleProcessGroup, TracksTransfers
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.parallel import strategies
from cubemesh.parallel.tensor_parallel import TensorParallel
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.parallel.waits import WaitingGroup, Waits
from cubemesh.schema.spec import ProgramSettings


class FourRanks(SingleProcessGroup):
    size = 4


def configured(**settings):
    sync = strategies.make("tensor-parallel", FourRanks())
    sync.configure(ProgramSettings(sync="tensor-parallel", **settings))
    assert isinstance(sync, TensorParallelSync)
    return sync


def test_all_devices_divide_a_layer_unless_the_spec_says_how_many():
    whole = configured()
    assert (whole.size, whole.bucket_bytes, whole.sequence) == (4, None, None)
    mesh = configured(tensor_parallel_size=2, sequence_parallel=False)
    assert (mesh.size, mesh.bucket_bytes, mesh.sequence) == (2, BUCKET_BYTES, False)
    assert configured(tensor_parallel_size=1, bucket_bytes=64).bucket_bytes == 64


def test_groups_that_do_not_divide_the_devices_are_refused():
    program = ProgramSettings(tensor_parallel_size=3)
    assert TensorParallel.ranks_per_sample(6, program) == 3
    assert TensorParallel.ranks_per_sample(1, program) == 1
    assert TensorParallel.ranks_per_sample(8, ProgramSettings()) == 8
    with pytest.raises(Unsupported, match=r"tensor_parallel_size=3 do not divide devices=4"):
        TensorParallel.ranks_per_sample(4, program)
    with pytest.raises(UsageError, match="tensor_parallel_size"):
        ProgramSettings(tensor_parallel_size=0)


def test_transfers_of_a_programs_own_are_measured_when_they_are_waited_for():
    readings = iter(range(100))
    clock = lambda: float(next(readings))  # noqa: E731
    transfers, waits = Transfers(clock=clock), Waits(clock=clock)
    group = TimedGroup(WaitingGroup(SingleProcessGroup(), waits), transfers)
    assert isinstance(group, TracksTransfers)
    done = []

    class Own:
        def wait(self):
            done.append(True)

    tracked = group.track(Own(), 12)
    assert not done
    tracked.wait()
    assert done
    (found,) = transfers.cut(0, 100)
    assert (found.issued, found.waited, found.ended, found.size_bytes) == (0, 1, 4, 12)
    assert waits.take() == 1
    plain = TimedGroup(SingleProcessGroup(), transfers)
    plain.track(Own(), 8).wait()
    assert len(done) == 2
