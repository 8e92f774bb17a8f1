"""A device's part of parameters and of dropout masks, without processes."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import SyncDropout
from cubemesh.frameworks.pytorch.distributed.tensor_modules import DividedDropout, Division, _order
from cubemesh.networks.layers import Dropout


def mesh(rank, size):
    return SimpleNamespace(get_local_rank=lambda: rank, size=lambda: size)


def dropout(layout, rank=0, replicas=None, **layer):
    layer = Dropout(rate=0.5, **layer)
    shared = torch.Generator().manual_seed(7)
    return DividedDropout(layer, layout, mesh(rank, 2), shared, replicas)


@pytest.mark.parametrize(("layout", "axis"), [("positions", 1), ("features", 2), ("whole", None)])
def test_masks_of_the_global_batch_are_those_of_one_device(layout, axis):
    whole = torch.ones(4, 6, 8)
    torch.manual_seed(3)
    one = SyncDropout(0.5, SimpleNamespace(rank=0, size=1))(whole)
    for replica in range(2):
        for rank in range(2):
            part = whole[:2] if axis is None else whole[:2].chunk(2, axis)[rank]
            torch.manual_seed(3)
            found = dropout(layout, rank, (replica, 2))(part)
            rows = one[2 * replica : 2 * replica + 2]
            assert torch.equal(found, rows if axis is None else rows.chunk(2, axis)[rank])


@pytest.mark.parametrize(
    ("layout", "layer", "alike"),
    [
        ("whole", {}, True),
        ("positions", {}, False),
        ("features", {}, False),
        ("positions", {"per_sample": True}, True),
    ],
)
def test_devices_draw_alike_what_they_all_have(layout, layer, alike):
    """And other numbers for their own parts, in evaluation none."""
    found = []
    for rank in range(2):
        torch.manual_seed(rank)
        found.append(dropout(layout, rank, **layer)(torch.ones(8, 4, 6)))
    assert torch.equal(*found) == alike
    assert torch.equal(dropout(layout).eval()(torch.ones(2, 4)), torch.ones(2, 4))


def test_parts_of_queries_keys_and_values_are_of_each():
    rows = torch.arange(12.0)[:, None]
    division = Division(mesh=mesh(1, 2), shape=rows.shape, axis=0, order=_order(12, 3, 2))
    assert division.part(rows).flatten().tolist() == [2, 3, 6, 7, 10, 11]
    uneven = Division(mesh=mesh(1, 2), shape=torch.Size([5, 2]), axis=0)
    assert uneven.part(torch.arange(10).view(5, 2)).tolist() == [[6, 7], [8, 9]]
    whole = Division(mesh=mesh(1, 2), shape=torch.Size([5]), axis=None)
    assert len(whole.part(torch.arange(5))) == 5
