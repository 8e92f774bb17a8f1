"""What every framework of the table must keep to, whichever is installed here."""

import dataclasses
import functools
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import (
    OutOfMemory,
    SupportsCompilation,
    SupportsLearningRate,
    SupportsSnapshots,
    Unsupported,
)
from cubemesh.networks.layers import LAYERS, SEQUENCE_LAYERS
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import WORK_KINDS, Ceiling, ForwardBackward, Infer, TrainSteps
from cubemesh.worker.validation import check_supported
from layer_samples import (
    chosen,
    clicks,
    decoder,
    documents,
    every_layer,
    every_sequence_layer,
    fed,
    gated,
    of_tokens,
    recurrences,
    recurrent,
)
from loadable_frameworks import TRAINING

SCRIPTS = {"null": "accuracy=1:1"}
pytestmark = pytest.mark.parametrize("name", TRAINING)


@pytest.fixture
def framework(name, monkeypatch):
    """Loaded. What compiles is traced and run without making machine code, a matter of seconds a
    network; frameworks/pytorch/test_compiled.py makes it."""
    loaded = FRAMEWORKS[name].load()
    if hasattr(loaded, "BACKEND"):
        monkeypatch.setattr(loaded, "BACKEND", "aot_eager")
    able = loaded.capabilities()
    if not able.devices:
        pytest.skip(able.hint)
    return loaded


@pytest.fixture
def layout(framework):
    """The usual one where it is offered."""
    return max(framework.capabilities().layouts, key="nchw".__eq__)


@pytest.fixture
def request_for(name, make_request, layout):
    def make(network="little-cnn", **fields):
        return make_request(network, script=SCRIPTS.get(name), **{"layout": layout, **fields})

    return make


def test_the_usual_layout_is_supported(name, framework):
    assert FRAMEWORKS[name].layout in framework.capabilities().layouts


def test_the_sample_network_has_every_layer(name):
    assert {type(node.layer) for node in every_layer().nodes} == set(LAYERS.values())


def test_every_layer_is_trained(framework, request_for, make_batch):
    request = request_for(every_layer())
    program = framework.build(request)
    program.load(request.network.draw(0))
    placed = program.place(make_batch(request.network))
    program.train_step(placed)
    assert np.isfinite(program.loss())
    assert program.evaluate(placed).shape == (4, 5)


def test_the_other_sample_networks_have_every_layer_of_sequences(name):
    made = (
        every_sequence_layer(),
        of_tokens(),
        recurrent(),
        gated(),
        decoder(),
        recurrences(),
        fed(),
        chosen(),
        documents(),
        clicks(),
    )
    nodes = [node for network in made for node in network.nodes]
    found = {type(node.layer) for node in nodes}
    assert set(SEQUENCE_LAYERS.values()) <= found


@pytest.mark.parametrize(
    "make",
    [
        *(every_sequence_layer, of_tokens, recurrent, gated, decoder, fed, chosen, documents),
        clicks,
        functools.partial(recurrences, 1),  # a compiler writes out each position
    ],
)
def test_every_layer_of_sequences_is_trained_or_refused(make, framework, request_for, make_batch):
    request = request_for(make())
    try:
        program = framework.build(request)
    except Unsupported as refused:
        pytest.skip(str(refused))
    program.load(request.network.draw(0))
    placed = program.place(make_batch(request.network))
    program.train_step(placed)
    assert np.isfinite(program.loss())
    shape = request.network.shapes[request.network.output]
    assert program.evaluate(placed).shape == (4, *shape)


def test_programs_with_checkpoints_follow_a_learning_rate_and_go_on_from_a_snapshot(
    name, framework, request_for, make_batch, tiny
):
    program = framework.build(request_for(tiny, optimizer="adam", epochs=1, learning_rate=0.1))
    for protocol in (SupportsSnapshots, SupportsLearningRate):
        assert isinstance(program, protocol) == FRAMEWORKS[name].checkpoints
    if not FRAMEWORKS[name].checkpoints:
        return
    program.load(tiny.draw(0))
    placed = program.place(make_batch(tiny))

    def step(rate):
        program.set_learning_rate(rate)
        program.train_step(placed)
        return {name: array.tobytes() for name, array in program.state().items()}

    def bits(snapshot):
        return {n: a.tobytes() for n, a in {**snapshot.weights, **snapshot.arrays}.items()}

    drawn = {name: array.tobytes() for name, array in program.state().items()}
    assert step(0.0) == drawn
    taken = program.snapshot()
    before = bits(taken)
    first = step(0.01)
    assert first != drawn
    assert step(0.02) != first
    assert bits(taken) == before, "further steps change no snapshot"
    program.load(tiny.draw(1))
    program.restore(taken)
    assert bits(program.snapshot()) == before
    assert program.snapshot().plain == taken.plain
    assert step(0.01) == first
    wrong = dict(taken.arrays)
    wrong["optimizer.none.mean"] = wrong.popitem()[1]
    with pytest.raises(UsageError, match="snapshot"):
        program.restore(dataclasses.replace(taken, arrays=wrong))


def test_capabilities_are_sane(framework, name, layout):
    able = framework.capabilities()
    assert able.works <= set(WORK_KINDS)
    assert "cpu" in able.devices
    assert {device.split(":")[0] for device in able.devices} == set(able.precisions)
    assert all("fp32" in precisions for precisions in able.precisions.values())
    assert FRAMEWORKS[name].static_scale == ("static" in able.loss_scales)
    work = TrainSteps(network="little-cnn", batch_per_device=8)
    settings = ProgramSettings(framework=name, layout=layout)
    check_supported(RunSpec(work=work, program=settings), able)


def test_every_supported_precision_layout_and_optimizer_takes_a_step_on_the_cpu(
    framework, request_for, make_batch, tiny
):
    able = framework.capabilities()
    scales = {"dynamic": "dynamic", "static": 256.0}
    precisions = [{"precision": p} for p in sorted(able.precisions["cpu"])]
    precisions += [{"precision": "fp16", "loss_scale": scales[s]} for s in sorted(able.loss_scales)]
    if "fp32" in able.layer_precisions.get("cpu", ()):
        precisions.append({"precision": "bf16", "precision_of": ("classifier=fp32",)})
    layouts, optimizers = sorted(able.layouts), sorted(able.optimizers)
    for number in range(max(map(len, (precisions, layouts, optimizers)))):  # each at least once
        case = {
            **precisions[number % len(precisions)],
            "layout": layouts[number % len(layouts)],
            "optimizer": optimizers[number % len(optimizers)],
            "weight_decay": 0.01,
        }
        request = request_for(tiny, **case)
        program = framework.build(request)
        program.load(request.network.draw(0))
        program.train_step(program.place(make_batch(request.network)))
        program.synchronize()
        assert np.isfinite(program.loss()), case
        scores = program.evaluate(program.place(make_batch(request.network)))
        assert scores.dtype in (np.float32, np.float64), case
        program.close()


def test_forward_and_backward_update_nothing(framework, name, request_for, make_batch, tiny):
    """The loss is that of the forward pass, again and again: no weight changes."""
    passes = ForwardBackward(network=tiny.name, batch_per_device=4)
    program = framework.build(request_for(tiny, work=passes))
    if isinstance(program, SupportsCompilation):
        program.compile(program.place(make_batch(tiny)))
    weights = tiny.draw(0)
    program.load(weights)
    placed = program.place(make_batch(tiny))
    losses = []
    for _ in range(3):
        program.forward_backward(placed)
        program.synchronize()
        losses.append(program.loss())
    after = program.state()
    assert all(np.array_equal(after[name], weights[name]) for name in tiny.parameters)
    if name != "null":  # its losses are scripted
        program.forward(placed)
        assert losses == pytest.approx([program.loss()] * 3, rel=1e-5)
    program.close()


def test_an_inference_pass_has_the_scores_of_an_evaluation(
    framework, name, request_for, make_batch, tiny
):
    work = Infer(network=tiny.name, batch_per_device=4, scenario="offline")
    program = framework.build(request_for(tiny, work=work))
    if isinstance(program, SupportsCompilation):
        program.compile(program.place(make_batch(tiny)))
    program.load(tiny.draw(0))
    placed = program.place(make_batch(tiny))
    found = program.fetch(program.infer(placed))
    assert np.allclose(found, program.evaluate(placed), rtol=1e-4, atol=1e-5)
    program.close()


def test_a_placed_batch_is_a_copy(framework, request_for, make_batch):
    request = request_for()
    program = framework.build(request)
    program.load(request.network.draw(0))
    batch, other = (make_batch(request.network, seed=s) for s in (1, 2))
    expected = program.evaluate(program.place(make_batch(request.network, seed=1)))
    placed = program.place(batch)
    batch.images[:] = 0
    batch.labels[:] = 0
    program.place(other)
    assert np.array_equal(program.evaluate(placed), expected)


def test_a_read_only_batch_is_placed(framework, request_for, make_batch, recwarn):
    request = request_for()
    batch = make_batch(request.network)
    batch.images.flags.writeable = False
    batch.labels.flags.writeable = False
    program = framework.build(request)
    program.load(request.network.draw(0))
    assert program.evaluate(program.place(batch)).shape == (4, 10)
    assert not recwarn.list


def test_load_restores_what_state_returned(framework, request_for, make_batch):
    request = request_for(every_layer())
    first, second = framework.build(request), framework.build(request)
    drawn = request.network.draw(3)
    first.load(drawn)
    for name, array in first.state().items():
        assert np.array_equal(array, drawn[name]), name
    first.train_step(first.place(make_batch(request.network)))
    saved = first.state()
    assert list(saved) == [*request.network.parameters, *request.network.state]
    second.load(saved)
    for name, array in second.state().items():
        assert np.array_equal(array, saved[name]), name
        array += 1
    assert all(np.array_equal(array, saved[n]) for n, array in second.state().items())


def test_weights_of_another_network_are_refused(framework, request_for):
    program = framework.build(request_for())
    with pytest.raises(UsageError, match="missing"):
        program.load({})


def test_forward_changes_no_parameter(framework, request_for, make_batch):
    request = request_for(every_layer())
    program = framework.build(request)
    program.load(request.network.draw(0))
    before = program.state()
    program.forward(program.place(make_batch(request.network)))
    assert np.isfinite(program.loss())
    after = program.state()
    assert all(np.array_equal(before[p], after[p]) for p in request.network.parameters)


def test_clock_and_memory_are_read(framework, request_for):
    before = time.perf_counter()
    program = framework.build(request_for())
    assert before <= program.clock() <= time.perf_counter()
    peak_bytes = program.peak_memory_bytes()
    assert peak_bytes is None or peak_bytes >= 0
    assert list(program.buckets) == []


def test_a_ceiling_can_be_called(framework, name):
    settings = ProgramSettings(framework=name, script=SCRIPTS.get(name))
    product = framework.build_ceiling(Ceiling(size=32), settings, "cpu", 1)
    copy = framework.build_ceiling(Ceiling(operation="copy", size=1000), settings, "cpu", 1)
    assert (product.work_per_call, product.unit) == (2 * 32**3, "FLOP/s")
    assert (copy.work_per_call, copy.unit) == (2000, "byte/s")
    for program in (product, copy):
        start = program.clock()
        program.call()
        program.synchronize()
        assert program.clock() > start


def test_refused_memory_is_distinguished_from_other_errors(framework):
    assert framework.is_out_of_memory(MemoryError())
    assert framework.is_out_of_memory(OutOfMemory())
    assert not framework.is_out_of_memory(ValueError("out of memory"))
    assert not framework.is_out_of_memory(RuntimeError("something else"))


PRELOAD_THEN_FORK = """
import os, sys
import numpy as np
from cubemesh.frameworks import entry
from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest, SupportsProfiling
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel.strategy import NoSync

def threads_here():
    folder = "/proc/self/task"
    names = [open(f"{folder}/{task}/comm").read().strip() for task in os.listdir(folder)]
    return len(names) - names.count("jemalloc_bg_thd")  # of PyArrow, started again in a fork

threads = threads_here()
framework = entry(sys.argv[1]).load()
framework.preload()
assert threads_here() == threads, "preload started a thread"
loaded = set(sys.modules)
for case in sys.argv[2:]:
    name, layout = case.split("=")
    if os.fork() == 0:
        break
    if os.wait()[1]:
        sys.exit(f"{name} failed")
else:
    sys.exit()
framework = entry(name).load()
net = NetworkBuilder("linear")
net.classify(net.linear(net.flatten(net.input("image", (3, 8, 8))), 10))
network = net.build()
program = framework.build(
    BuildRequest(
        network=network,
        work=TrainSteps(network="linear", batch_per_device=2),
        placement=Placement(),
        program=ProgramSettings(framework=name, layout=layout),
        sync=NoSync(),
        device="cpu",
        threads=2,
    )
)
program.load(network.draw(0))
batch = Batch(images=np.zeros((2, 3, 8, 8), np.float32), labels=np.zeros(2, np.int64))
placed = program.place(batch)
program.train_step(placed)
if isinstance(program, SupportsProfiling):
    program.profile(lambda: program.train_step(placed))()
own = {
    "pytorch": "torch",
    "tensorflow-xla": "tensorflow",
    "keras-jax": "keras",
    "keras-torch": "keras",
}.get(name, name)
late = [m for m in sorted(set(sys.modules) - loaded) if m.split(".")[0] == own]
print(name, program.loss(), *late, flush=True)
os._exit(0)
"""


def test_frameworks_that_share_a_server_preload_the_same(name):
    own = FRAMEWORKS[name]
    assert own.load().preload is FRAMEWORKS[own.preloads or name].load().preload


@functools.cache
def printed_by_forks(preloaded):
    """Framework → what a fork printed, of a process that preloaded `preloaded`, and with it all
    frameworks that share its server."""
    cases = {}
    for name in TRAINING:
        able = FRAMEWORKS[name].load().capabilities()
        if able.devices and (FRAMEWORKS[name].preloads or name) == preloaded:
            cases[name] = max(able.layouts, key="nchw".__eq__)
    command = [sys.executable, "-c", PRELOAD_THEN_FORK, preloaded]
    command += [f"{name}={layout}" for name, layout in cases.items()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}


@pytest.mark.usefixtures("framework")
def test_a_fork_after_preload_takes_a_step_and_imports_little(name):
    loss, *late = printed_by_forks(FRAMEWORKS[name].preloads or name)[name]
    assert np.isfinite(float(loss))
    assert len(late) <= 2, late
