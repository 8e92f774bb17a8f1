"""Programs on a GPU: every array has what NumPy computes; every tiling computes the same."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from cubemesh.inference.gpu.lower import lower
from cubemesh.inference.gpu.program import ConvStep
from cubemesh.inference.gpu.session import GpuSession
from hwnc_networks import ZOO, fp32, images, int8, scores
from hwnc_reference import run_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]
FP16 = 4e-3
"""Of the largest score."""


def relative(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("batch", [1, 3, 16, 48, 64])
@pytest.mark.parametrize("name", ZOO)
def test_fp16_has_the_scores_of_fp32(name, batch):
    graph = fp32(name)
    inputs = images(graph, batch)
    session = GpuSession(lower(graph), batch, "cuda:0")
    found = session.run({graph.inputs[0].name: inputs})[0]
    assert relative(found, scores(graph, inputs)) < FP16


@pytest.mark.parametrize("batch", [5, 16])
@pytest.mark.parametrize("name", ZOO)
def test_8_bits_have_the_scores_that_numpy_computes(name, batch):
    whole = fp32(name)
    graph = int8(whole)
    program, inputs = lower(graph), images(graph, batch)
    found = GpuSession(program, batch, "cuda:0").run({graph.inputs[0].name: inputs})[0]
    wanted = run_program(program, inputs)[0]
    # Sums are exact; a multiplier in fp32 instead of fp64 moves a value by one step now and then,
    # and later layers round what follows from it.
    rounding = relative(wanted, scores(whole, inputs))
    assert relative(found, wanted) <= 1.5 * rounding
    assert np.abs(found - wanted).mean() <= 0.5 * rounding * np.abs(wanted).max()


def test_scores_of_a_batch_do_not_depend_on_what_ran_before():
    graph = int8(fp32("little-cnn"))
    session = GpuSession(lower(graph), 16, "cuda:0")
    name = graph.inputs[0].name
    first, second = images(graph, 16, 1), images(graph, 16, 2)
    wanted = [np.array(session.run({name: batch})[0]) for batch in (first, second)]
    for batch, expected in zip((second, first, second), (1, 0, 1), strict=True):
        assert np.array_equal(session.run({name: batch})[0], wanted[expected])


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_tuned_tilings_have_the_same_scores(kind):
    graph = fp32("resnet-18")
    if kind == "int8":
        graph = int8(graph)
    program, inputs = lower(graph), images(graph, 64)
    given = {graph.inputs[0].name: inputs}
    default = GpuSession(program, 64, "cuda:0")
    tuned = GpuSession(program, 64, "cuda:0", tune=True)
    assert relative(tuned.run(given)[0], default.run(given)[0]) < (1e-2 if kind == "int8" else FP16)
    again = GpuSession(program, 64, "cuda:0", tuned.kernels)
    assert again.kernels == tuned.kernels
    assert np.array_equal(again.run(given)[0], tuned.run(given)[0])


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_every_tiling_computes_the_same(kind, batch):
    graph = fp32("resnet-18")
    program = lower(int8(graph) if kind == "int8" else graph)
    session = GpuSession(program, batch, "cuda:0")
    checked = 0
    for number, step in enumerate(program.steps):
        if not isinstance(step, ConvStep) or checked > 200:
            continue
        session._fill(step)
        sums = {}
        for tiling in session._fitting(step):
            try:
                session._convolution(number, step, tiling)()
            except Exception as error:
                if "out of resource" not in str(error):
                    raise
                continue
            sums[tiling] = session._checked(step.y)
            checked += 1
        typical = np.median(np.stack(list(sums.values())), axis=0)
        for tiling, found in sums.items():
            apart = np.abs(found - typical).max() / np.abs(typical).max()
            assert apart < 1e-3, (session.describe(step), tiling)
    assert not session._arrived.any()
    assert checked > 60
