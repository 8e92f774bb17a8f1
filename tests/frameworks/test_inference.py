"""What every framework and engine that infers must keep to, whichever is installed here."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import SupportsInference, Unsupported
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import Infer, TrainSteps
from cubemesh.worker.validation import check_supported
from layer_samples import (
    dilated,
    every_layer,
    every_sequence_layer,
    mixed,
    of_tokens,
    recurrent,
    trained_weights,
)

torch = pytest.importorskip("torch")

INFERS = [n for n, one in FRAMEWORKS.items() if one.installed and one.infers and not one.simulates]
ENGINES = [name for name in INFERS if not FRAMEWORKS[name].trains]
MAKERS = [every_layer, mixed, every_sequence_layer, of_tokens, recurrent, dilated]
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 4e-2, "fp16": 4e-3}
"""Largest error of a score relative to the largest score."""


@pytest.fixture
def framework(name, monkeypatch):
    """Loaded; what compiles is traced and run without making machine code."""
    loaded = FRAMEWORKS[name].load()
    if hasattr(loaded, "BACKEND"):
        monkeypatch.setattr(loaded, "BACKEND", "aot_eager")
    if not loaded.capabilities().devices:
        pytest.skip(loaded.capabilities().hint)
    return loaded


@pytest.fixture
def scores_of(make_request, make_batch):
    """The scores of a framework for the sample batch of a network."""

    def scores(framework, network, **settings):
        work = Infer(network=network.name, batch_per_device=4)
        program = framework.build(make_request(network, work=work, **settings))
        program.load(trained_weights(network))
        assert isinstance(program, SupportsInference)
        found = program.fetch(program.infer(program.place(make_batch(network))))
        program.close()
        return found

    return scores


@pytest.mark.parametrize("name", INFERS)
@pytest.mark.parametrize("make", MAKERS)
def test_scores_equal_those_of_fp64_in_every_precision(make, name, framework, scores_of):
    network, able = make(), framework.capabilities()
    wanted = scores_of(FRAMEWORKS["pytorch"].load(), network, precision="fp64")
    precisions, layouts = sorted(able.precisions["cpu"]), sorted(able.layouts)
    pairs = list(itertools.product(precisions, layouts))
    if hasattr(framework, "BACKEND"):  # each is traced for most of a second
        turn = MAKERS.index(make) % 2  # a network has two of the precisions, and one layout of each
        pairs = list(zip(precisions[turn::2], itertools.cycle(layouts), strict=False))
    for precision, layout in pairs:
        try:
            found = scores_of(framework, network, precision=precision, layout=layout)
        except Unsupported as refused:
            pytest.skip(str(refused))
        assert found.dtype in (np.float32, np.float64)
        assert found.shape == wanted.shape
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert error <= TOLERANCE[precision], (precision, layout, error)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
@pytest.mark.parametrize("name", INFERS)
@pytest.mark.parametrize("make", [every_layer, mixed, of_tokens])
def test_scores_on_a_gpu_equal_those_of_fp64_in_every_precision(
    make, name, make_request, make_batch
):
    network, framework = make(), FRAMEWORKS[name].load()
    able = framework.capabilities()
    if "cuda:0" not in able.devices:
        pytest.skip(able.hint)

    def scores(framework, device, **settings):
        """Of one batch before and after another: what a pass keeps must not reach the next."""
        work = Infer(network=network.name, batch_per_device=4)
        program = framework.build(make_request(network, device=device, work=work, **settings))
        program.load(trained_weights(network))
        batches = [program.place(make_batch(network, seed=seed)) for seed in (0, 1, 0)]
        first, other, again = [program.fetch(program.infer(placed)) for placed in batches]
        program.close()
        assert not np.array_equal(first, other)
        assert np.allclose(first, again, rtol=1e-6, atol=1e-6 * np.abs(first).max())
        return again

    wanted = scores(FRAMEWORKS["pytorch"].load(), "cpu", precision="fp64")
    for precision in sorted(able.precisions["cuda"] - {"tf32"}):
        for layout in sorted(able.layouts):
            found = scores(framework, "cuda:0", precision=precision, layout=layout)
            error = np.abs(found - wanted).max() / np.abs(wanted).max()
            assert error <= TOLERANCE[precision], (precision, layout, error)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("network", ["resnet-18", "googlenet", "cifarnet"])
def test_engines_equal_pytorch_on_networks_of_the_zoo(name, framework, network, scores_of):
    small = networks.build(network, networks.entry(network).smallest_image_size)
    wanted = scores_of(FRAMEWORKS["pytorch"].load(), small, precision="fp64")
    found = scores_of(framework, small)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_does_not_train(name, framework):
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=1),
        program=ProgramSettings(framework=name),
    )
    with pytest.raises(Unsupported, match=f"{name} does not support work 'train_steps'"):
        check_supported(spec, framework.capabilities())


@pytest.mark.parametrize("name", INFERS)
def test_a_placed_batch_is_a_copy(name, framework, make_request, make_batch):
    network = networks.build("little-cnn", 16, 10)
    work = Infer(network="little-cnn", batch_per_device=4)
    layout = FRAMEWORKS[name].layout
    program = framework.build(make_request(network, work=work, layout=layout))
    program.load(network.draw(0))
    batch = make_batch(network)
    placed = program.place(batch)
    before = program.fetch(program.infer(placed))
    batch.images[:] = 0
    after = program.fetch(program.infer(placed))
    assert np.array_equal(before, after)
    assert before.any()


PRELOAD_THEN_FORK = """
import os, sys
import numpy as np
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.parallel.strategy import NoSync
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import Infer

threads = len(os.listdir("/proc/self/task"))
framework = entry(sys.argv[1]).load()
framework.preload()
assert len(os.listdir("/proc/self/task")) == threads, "preload started a thread"
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
network = networks.build("little-cnn", 16, 10)
program = framework.build(
    BuildRequest(
        network=network,
        work=Infer(network="little-cnn", batch_per_device=2),
        placement=Placement(),
        program=ProgramSettings(framework=sys.argv[1]),
        sync=NoSync(),
        device="cpu",
        threads=2,
    )
)
program.load(network.draw(0))
batch = Batch(images=np.zeros((2, 3, 16, 16), np.float32), labels=np.zeros(2, np.int64))
print(program.fetch(program.infer(program.place(batch))).shape, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("name", ENGINES)
def test_a_fork_after_preload_answers(name):
    command = [sys.executable, "-c", PRELOAD_THEN_FORK, name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 10)"
