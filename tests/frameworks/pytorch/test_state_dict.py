"""Snapshots of an optimizer's arrays."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.precision.state_dict import restore_arrays, snapshot_arrays


def test_steps_after_a_snapshot_is_restored_do_not_change_it():
    layer = torch.nn.Linear(2, 2)
    parameters = dict(layer.named_parameters())
    optimizer = torch.optim.Adam(parameters.values())

    def step():
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    snapshot = snapshot_arrays(optimizer, parameters, "cpu")
    before = {name: array.copy() for name, array in snapshot.items()}
    restore_arrays(snapshot, optimizer, parameters, "cpu")
    step()
    assert all(np.array_equal(snapshot[name], before[name]) for name in before)
    assert before["optimizer.weight.step"] == 1
