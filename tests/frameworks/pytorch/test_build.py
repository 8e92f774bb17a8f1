"""Which requests are refused before anything is built."""

import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch import build
from cubemesh.parallel import strategies


@pytest.mark.parametrize("sync", ["asynchronous", "model-parallel"])
def test_global_batch_norm_needs_ranks_that_step_together(make_request, sync):
    request = make_request("resnet-18")
    group = SimpleNamespace(rank=0, size=2, point_to_point=lambda: None)
    request = dataclasses.replace(
        request,
        group=group,
        sync=strategies.make(sync, group),
        program=dataclasses.replace(request.program, batch_norm="global"),
    )
    with pytest.raises(Unsupported, match=f"batch_norm=global: with sync={sync}"):
        build(request)
