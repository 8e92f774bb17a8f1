"""Which stored records stand: those of trainings, with real checkpoints on a disk."""

import numpy as np
import pytest

from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.runs.reuse import is_reusable
from cubemesh.schema import (
    CheckpointSettings,
    Figure,
    Outcome,
    Placement,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    Train,
    Window,
)
from cubemesh.training.checkpoint import Checkpoint, path_of, save

OK = Outcome(status=Status.OK)


@pytest.fixture
def reusable(small_machine):
    return lambda record: is_reusable(record, small_machine, lambda name: True)


def trained(folder, status=Status.OK, resumed_at=0, steps=20):
    """A record of two ranks that made `steps` more after step `resumed_at`."""
    made = {"start_s": 0.0, "elapsed_s": 1.0, "samples": 8}
    windows = [Window(rank=rank, steps=steps, **made) for rank in range(2)]
    windows.append(Window(rank=0, phase="evaluate", steps=5, **made))
    return RunRecord(
        run_id="r",
        spec=RunSpec(
            work=Train(network="little-cnn", batch_per_device=4),
            placement=Placement(devices=2),
            checkpointing=CheckpointSettings(checkpoints=str(folder), resume=True),
        ),
        key=RunKey(spec_id="s", machine_id="m", software_id="s", code_version="c"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=Outcome(status=status),
        ranks=tuple(Rank(rank=rank, host="h", device="cpu", outcome=OK) for rank in range(2)),
        windows=tuple(windows) if steps else (),
        figures={"resumed_at_step": Figure(value=resumed_at, unit="")} if resumed_at else {},
    )


def keep(folder, step):
    for rank in range(2):
        weights = {"w": np.zeros(2, np.float32)}
        save(folder, rank, 2, Checkpoint(step=step, snapshot=Snapshot(weights=weights)))


def test_a_training_is_reused_while_its_last_checkpoint_is_the_newest(tmp_path, reusable):
    assert not reusable(trained(tmp_path))
    keep(tmp_path, 10)
    keep(tmp_path, 20)
    assert reusable(trained(tmp_path))
    assert reusable(trained(tmp_path, resumed_at=15, steps=5))
    assert reusable(trained(tmp_path, resumed_at=20, steps=0)), "it was done already"
    keep(tmp_path, 30)
    assert not reusable(trained(tmp_path)), "another training continued in this folder"
    path_of(tmp_path, 30, 1, 2).unlink()
    assert reusable(trained(tmp_path)), "a checkpoint counts with the files of all ranks"
    path_of(tmp_path, 20, 1, 2).unlink()
    assert not reusable(trained(tmp_path))


def test_a_training_without_access_to_its_folder_is_run_again(tmp_path, reusable):
    keep(tmp_path, 20)
    for status in (Status.UNSUPPORTED, Status.OOM, Status.DIVERGED):
        assert not reusable(trained(tmp_path, status))


def test_a_run_that_lacked_another_package_than_its_framework_runs_again(tmp_path, reusable):
    assert not reusable(trained(tmp_path, Status.NOT_INSTALLED, steps=0))
