"""A dozen real kills while checkpoints are written; the benchmark makes 200."""

import numpy as np


def test_every_kill_leaves_a_whole_checkpoint(script, tmp_path):
    kills = script("checkpoint_kills")
    assert kills.kill_often(tmp_path, 12) == []


def test_incomplete_checkpoints_are_reported(script, tmp_path):
    kills = script("checkpoint_kills")
    lost = kills.check(tmp_path, reported=3)
    assert "step 3" in lost
    assert "None" in lost
    other = kills.Snapshot(weights={"w": np.zeros(3, np.float32)})
    saver = kills.CheckpointWriter(tmp_path, rank=0, ranks=1, keep=2)
    saver.save(kills.Checkpoint(step=3, snapshot=other))
    saver.wait()
    assert kills.check(tmp_path, reported=3).startswith("step 3 holds")
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert kills.check(tmp_path, reported=3).startswith("damaged: ")
