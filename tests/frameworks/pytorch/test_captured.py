"""What capturing must not change, and what it says where it cannot."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import SupportsCapture, Unsupported
from cubemesh.frameworks.pytorch import build, captured, compiled, segmented_loss
from cubemesh.frameworks.pytorch.precision import low_precision_weights
from cubemesh.frameworks.pytorch.program import PyTorchProgram
from cubemesh.kernels.triton import conv1x1_bn_stats
from cubemesh.kernels.triton.autotune import GpuAutotuner
from cubemesh.kernels.triton.batch_norm import launch
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import FirstSteps, Forward, ForwardBackward, Infer, TrainSteps
from cubemesh.worker.validation import check_supported

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
GPU = "cuda:0"
STEPS = 8


def trained(make, request, batches):
    ours = make(request)
    if hasattr(ours, "compile"):
        ours.compile(ours.place(batches[0]))
    ours.load(request.network.draw(0))
    losses = []
    for batch in batches:
        ours.train_step(ours.place(batch))
        losses.append(ours.loss())
    state = ours.state()
    ours.close()
    return losses, state


def test_on_a_cpu_the_step_is_eager_with_a_reason(make_request, make_batch):
    network = networks.build("little-cnn", 16, 10)
    request = make_request(network, precision="fp64", learning_rate=0.01)
    batches = [make_batch(network, 2, seed) for seed in range(3)]
    ours = captured.build(request)
    assert isinstance(ours, SupportsCapture)
    assert "CPU" in ours.not_captured
    assert ours.implementations is None
    ours.close()
    losses, state = trained(captured.build, request, batches)
    plain, plain_state = trained(build, request, batches)
    assert losses == pytest.approx(plain, rel=1e-9)
    for name, array in state.items():
        np.testing.assert_allclose(array, plain_state[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("missing", ["", "Install gcc."])
def test_segments_are_chosen_before_the_first_step(
    missing, make_request, make_batch, tiny, monkeypatch
):
    """On a CPU, with the compiler and CUDA events replaced."""
    compiled_functions = []

    def compiler(function):
        compiled_functions.append(function)
        return function

    times = iter([2.0, 1.0] * 4)
    monkeypatch.setattr(segmented_loss, "step_ms", lambda forward, *_: forward() and next(times))
    monkeypatch.setattr(
        captured, "compiler_for", lambda device: (None if missing else compiler, missing)
    )
    request = make_request(tiny, precision="fp64", learning_rate=0.1)
    ours, plain = captured.build(request), build(request)
    batch = make_batch(tiny)
    ours._choose_implementations(ours.place(batch))
    assert all(p.grad is None for p in ours._built.parameters.values())
    assert missing in ours.missing_kernels
    assert bool(compiled_functions) == (not missing)
    for program in (ours, plain):
        program.load(tiny.draw(0))
        for _ in range(3):
            program.train_step(program.place(batch))
    assert ours.loss() == pytest.approx(plain.loss(), rel=1e-9)


def test_implementations_are_a_breakdown_longest_first(make_request, tiny):
    ours = captured.build(make_request(tiny))
    ours.segments.choices = tuple(
        segmented_loss.Choice(segment=name, implementation="Inductor", milliseconds=times)
        for name, times in (("a", {"Inductor": 1.0, "operations": 2.0}), ("b", {"Inductor": 3.0}))
    )
    rows = ours.implementations.rows
    assert [(row.name, row.seconds) for row in rows] == [
        ("b: Inductor", 3e-3),
        ("a: Inductor", 1e-3),
    ]


def test_work_that_does_not_train_is_not_captured(make_request, tiny):
    work = Forward(network="little-cnn", batch_per_device=4)
    request = dataclasses.replace(make_request(tiny), work=work)
    assert "training" in captured.build(request).not_captured


def test_another_learning_rate_captures_again(make_request, tiny):
    ours = captured.build(make_request(tiny, learning_rate=0.1))
    ours.load(tiny.draw(0))
    ours._why_not, ours._graph, ours._done = "", object(), 5  # as on a GPU after its third step
    ours.set_learning_rate(0.1)
    assert ours._graph is not None
    assert ours.not_captured == ""
    ours.set_learning_rate(0.05)
    assert (ours._graph, ours._done) == (None, 0)
    assert "learning rate" in ours.not_captured
    ours._graph = object()
    ours.restore(ours.snapshot())
    assert ours._graph is None


class Recorder:
    """Of an exchange: which buckets it waited for, and which weights had moved by then."""

    def __init__(self):
        self.rank, self.size, self.moved = 0, 2, []

    def all_reduce_mean(self, array, low_precision=False):
        recorder = self

        class Waited:
            def wait(self):
                recorder.moved.append(
                    {n for n, w in recorder.now().items() if (w != recorder.before[n]).any()}
                )

        return Waited()


@pytest.mark.parametrize("sync", ["all-reduce", "all-reduce-16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lars"])
def test_all_but_the_last_bucket_are_updated_during_its_transfer(
    sync, optimizer, make_request, make_batch, without_dropout
):
    network, recorder = without_dropout(networks.build("little-cnn", 16, 10)), Recorder()

    def built(group):
        made = strategies.make(sync, group, 4096)
        request = make_request(network, learning_rate=0.01, optimizer=optimizer)
        return captured.build(dataclasses.replace(request, sync=made))

    ours, plain = built(recorder), built(SingleProcessGroup())
    ours._why_not = ""  # as on a GPU
    for program in (ours, plain):
        program.load(network.draw(0))
    recorder.now = ours.parameters
    late = set(ours.buckets[-1].parameters)
    assert len(ours.buckets) > 2
    for step in range(3):
        recorder.moved, recorder.before = [], ours.parameters()
        for program in (ours, plain):
            PyTorchProgram.train_step(program, program.place(make_batch(network, 8, step)))
        *before, last = recorder.moved
        assert not any(before)
        assert last
        assert not last & late
        after = ours.parameters()
        assert all((after[name] != recorder.before[name]).any() for name in late | last)
        for name, array in plain.parameters().items():
            np.testing.assert_array_equal(after[name], array, err_msg=name)
        assert all(p.grad is not None for p in ours._built.parameters.values())


@gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds no two GPUs here")
def test_a_program_leaves_its_gpu_the_current_one(make_request, make_batch):
    network = networks.build("little-cnn")
    torch.cuda.set_device(0)
    program = captured.build(make_request(network, device="cuda:1"))
    assert torch.cuda.current_device() == 1
    program.load(network.draw(0))
    for step in range(4):
        program.train_step(program.place(make_batch(network, 16, step)))
    assert np.isfinite(program.loss())
    assert torch.cuda.current_device() == 1


@gpu
@needs_gpu
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_replayed_step_equals_the_eager_one(layout, make_request, make_batch):
    """Step by step, in fp32: rounding errors grow during training; losses differed by 0.14 % after
    six steps."""
    network = networks.build("resnet-18", 64, 10)
    request = make_request(network, device=GPU, layout=layout, learning_rate=0.005)
    ours, plain = captured.build(request), build(request)
    batches = [make_batch(network, 32, seed) for seed in range(STEPS)]
    ours.compile(ours.place(batches[0]))
    ours.load(network.draw(0))
    before = ours.state()
    for step, batch in enumerate(batches):
        plain.restore(ours.snapshot())
        for program in (ours, plain):
            program.train_step(program.place(batch))
        assert ours.loss() == pytest.approx(plain.loss(), rel=2e-5), step
        found, wanted = ours.state(), plain.state()
        moved = {name: found[name] - before[name] for name in found}
        away = {name: found[name] - wanted[name] for name in found}
        error, size = (
            np.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in one.values()))
            for one in (away, moved)
        )
        assert error < 2e-3 * size, step
        before = found
    assert ours._graph is not None
    assert ours.not_captured == ""


@gpu
@needs_gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("tf32", 2e-2), ("bf16", 3e-2), ("fp16", 3e-2)]
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_replayed_training_equals_eager_training(
    precision, tolerance, layout, make_request, make_batch
):
    network = networks.build("resnet-18", 64, 10)
    request = make_request(
        network, device=GPU, precision=precision, layout=layout, learning_rate=0.005
    )
    if precision == "fp16":
        settings = dataclasses.replace(request.program, loss_scale=128.0)
        request = dataclasses.replace(request, program=settings)
    # Two batches, so that losses differ; alternating, so that a batch that is not copied shows.
    batches = [make_batch(network, 32, step % 2) for step in range(STEPS)]
    losses, _ = trained(captured.build, request, batches)
    plain, _ = trained(build, request, batches)
    assert losses == pytest.approx(plain, rel=tolerance)
    assert max(losses[-2:]) < 0.8 * losses[0]


@gpu
@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adam", "adamw", "lars"])
def test_every_optimizer_is_captured(optimizer, make_request, make_batch, without_dropout):
    network = without_dropout(networks.build("little-cnn"))  # Inductor draws other numbers
    request = make_request(network, device=GPU, precision="fp64")  # or a gradient near zero, and
    # with it a weight by RMSprop, goes either way
    work = dataclasses.replace(request.work, optimizer=optimizer, learning_rate=1e-3)
    request = dataclasses.replace(request, work=work)
    batches = [make_batch(network, 16, seed) for seed in range(STEPS)]
    losses, state = trained(captured.build, request, batches)
    plain, plain_state = trained(build, request, batches)
    assert losses == pytest.approx(plain, rel=1e-6)
    for name, array in state.items():
        away = np.linalg.norm(array - plain_state[name])
        assert away < 1e-5 * np.linalg.norm(plain_state[name]) + 1e-9, name


def choosing(monkeypatch, *wanted):
    """Make the first of `wanted` that a segment supports the fastest."""
    times = segmented_loss.SegmentedLoss._times

    def forced(self, *args):
        found = times(self, *args)
        order = {name: float(place) for place, name in enumerate(wanted, start=1)}
        return {name: order.get(name, 9.0) for name in found}

    monkeypatch.setattr(segmented_loss.SegmentedLoss, "_times", forced)


@gpu
@needs_gpu
@pytest.mark.parametrize(
    ("precision", "kind", "wanted"),
    [
        ("bf16", "tokens", ("operations",)),
        ("fp16", "tokens", ("fused loss", "operations")),
        ("bf16", "tokens", ("fused loss", "Inductor")),
        ("bf16", "images", ("kernels", "operations")),
        ("fp16", "images", ("kernels", "Inductor")),
        ("bf16", "images", ("Inductor",)),
    ],
)
def test_every_implementation_trains_like_the_eager_program(
    kind, wanted, precision, make_request, make_batch, without_dropout, monkeypatch
):
    choosing(monkeypatch, *wanted)
    monkeypatch.setattr(low_precision_weights, "FEWEST_VALUES", 1000)
    monkeypatch.setattr(segmented_loss, "FEWEST_LOSS_CLASSES", 500)
    network = gpt("small", 64, 500, width=64, depth=2, heads=2)
    if kind == "images":
        network = without_dropout(networks.build("vgg11", 32, 10))
    request = make_request(
        network,
        device=GPU,
        precision=precision,
        layout="nhwc",
        learning_rate=0.02,
        loss_scale=128.0 if precision == "fp16" else None,
    )
    batches = [make_batch(network, 16, step % 2) for step in range(STEPS)]
    batches.insert(5, make_batch(network, 7, 3))  # not captured
    ours = captured.build(request)
    ours.compile(ours.place(batches[0]))
    chosen = {row.name.split(": ")[1] for row in ours.implementations.rows}
    assert chosen <= set(wanted)
    assert ours._copies
    ours.close()
    losses, state = trained(captured.build, request, batches)
    plain, plain_state = trained(build, request, batches)
    assert losses == pytest.approx(plain, rel=1e-2)
    for name, array in state.items():
        away = np.linalg.norm(array - plain_state[name])
        assert away < 2e-2 * np.linalg.norm(plain_state[name]) + 1e-3, name


@gpu
@needs_gpu
def test_a_snapshot_has_the_state_of_weights_with_copies(make_request, make_batch, monkeypatch):
    monkeypatch.setattr(low_precision_weights, "FEWEST_VALUES", 1000)
    network = gpt("small", 32, 100, width=64, depth=1, heads=2)
    request = make_request(network, device=GPU, precision="bf16")
    work = dataclasses.replace(request.work, optimizer="adamw", learning_rate=1e-3)
    request = dataclasses.replace(request, work=work)
    batches = [make_batch(network, 8, step) for step in range(8)]
    ours, plain = captured.build(request), build(request)
    ours.compile(ours.place(batches[0]))
    assert ours._copies
    losses = []
    ours.load(network.draw(0))
    for step, batch in enumerate(batches):
        if step == 4:
            snapshot = ours.snapshot()
        ours.train_step(ours.place(batch))
        losses.append(ours.loss())
    plain.restore(snapshot)
    assert plain.snapshot().arrays.keys() == snapshot.arrays.keys()
    for program in (ours, plain):
        program.restore(snapshot)
        again = []
        for batch in batches[4:]:
            program.train_step(program.place(batch))
            again.append(program.loss())
        assert again == pytest.approx(losses[4:], rel=1e-3)


@gpu
@needs_gpu
def test_a_dynamic_loss_scale_runs_eagerly(make_request, make_batch):
    network = networks.build("resnet-18", 32, 10)
    request = make_request(network, device=GPU, precision="fp16")
    ours = captured.build(request)
    assert "loss scale" in ours.not_captured
    ours.load(network.draw(0))
    ours.train_step(ours.place(make_batch(network, 4)))
    assert np.isfinite(ours.loss())


def bottleneck():
    net = NetworkBuilder("bottleneck")
    x = net.input("image", (3, 16, 16))
    with net.segment("stem"):
        x = net.relu(net.batch_norm(net.conv(x, 64, kernel=3, padding=1, bias=False)))
    with net.segment("block"):
        y = net.relu(net.batch_norm(net.conv(x, 128, kernel=1, bias=False)))
        y = net.batch_norm(net.conv(y, 64, kernel=1, bias=False))
        x = net.relu(net.add(y, x))
    with net.segment("classifier"):
        net.classify(net.linear(net.global_average_pool(x), 10))
    return net.build()


@gpu
@needs_gpu
def test_convolutions_with_sums_train_like_others(make_request, make_batch, monkeypatch):
    """Wherever they can, whatever is faster; with a smaller batch between, which they cannot."""
    pytest.importorskip("triton.tools.tensor_descriptor")
    if torch.cuda.get_device_capability() < conv1x1_bn_stats.TENSOR_DESCRIPTORS:
        pytest.skip("this GPU copies no tiles by descriptor")
    made = []

    def always(conv, op, own, x):
        kernels = own.after_conv_stats(launch.Launch(block_rows=32, block_cols=64, warps=4))
        made.append(
            conv1x1_bn_stats.Conv1x1WithStats(conv, op.norm, kernels, conv1x1_bn_stats.TILINGS[0])
        )
        return made[-1]

    monkeypatch.setattr(conv1x1_bn_stats, "faster_with_stats", always)
    monkeypatch.setattr(GpuAutotuner, "_convs_of_shape", {})
    network = bottleneck()
    request = make_request(network, device=GPU, precision="bf16", layout="nhwc", learning_rate=0.01)
    samples = (32, 32, 32, 32, 20, 32, 32, 32, 20, 20, 32, 32)
    batches = [make_batch(network, n, step % 2) for step, n in enumerate(samples)]
    losses, state = trained(captured.build, request, batches)
    plain, plain_state = trained(build, request, batches)
    assert len(made) == 2
    assert losses == pytest.approx(plain, rel=1e-2)
    assert losses[-1] < 0.9 * losses[0]
    for name in network.state:
        np.testing.assert_allclose(state[name], plain_state[name], rtol=2e-2, atol=2e-2)


@gpu
@needs_gpu
def test_a_batch_of_another_shape_runs_eagerly(make_request, make_batch):
    network = networks.build("resnet-18", 64, 10)
    request = make_request(network, device=GPU, layout="nhwc", learning_rate=0.005)
    batches = [make_batch(network, n, seed) for seed, n in enumerate((8, 8, 8, 5, 8, 8))]
    losses, _ = trained(captured.build, request, batches)
    plain, _ = trained(build, request, batches)
    assert losses == pytest.approx(plain, rel=2e-2)


@pytest.mark.parametrize("framework", [captured, compiled])
@pytest.mark.parametrize(
    ("asked", "work", "says"),
    [
        ({"batch_norm": "global", "sync": "all-reduce"}, TrainSteps, "batch_norm 'global'"),
        ({"deterministic": True}, TrainSteps, "deterministic"),
        ({}, FirstSteps, "work 'first_steps'"),
    ],
)
def test_settings_that_need_single_layers_are_refused(framework, asked, work, says):
    able = dataclasses.replace(
        framework.capabilities(), devices=("cpu",), precisions={"cpu": frozenset({"fp32"})}
    )
    spec = RunSpec(
        work=work(network="resnet-18", batch_per_device=8),
        placement=Placement(device="cpu", devices=2),
        program=ProgramSettings(framework=f"pytorch-{framework.__name__.split('.')[-1]}", **asked),
    )
    with pytest.raises(Unsupported, match=says):
        check_supported(spec, able)


@gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_passes_without_an_update_equal_eager_ones(precision, make_request, make_batch):
    """Losses of both passes batch by batch; no weight changes, and every gradient is there."""
    network = networks.build("resnet-18", 64, 10)
    work = ForwardBackward(network=network.name, batch_per_device=32)
    request = make_request(network, device=GPU, precision=precision, work=work)
    ours, plain = captured.build(request), build(request)
    batches = [make_batch(network, 32, seed) for seed in range(STEPS)]
    ours.compile(ours.place(batches[0]))
    weights = network.draw(0)
    for program in (ours, plain):
        program.load(weights)
    assert ours.not_captured == ""
    for batch in batches:
        for program in (ours, plain):
            program.forward_backward(program.place(batch))
        assert ours.loss() == pytest.approx(plain.loss(), rel=2e-5 if precision == "fp32" else 3e-2)
    after = ours.state()
    assert all(np.array_equal(after[name], weights[name]) for name in network.parameters)
    for program in (ours, plain):
        program.close()


@gpu
@needs_gpu
def test_an_inference_pass_is_one_graph_with_the_scores_of_the_eager_one(make_request, make_batch):
    network = networks.build("resnet-18", 64, 10)
    work = Infer(network=network.name, batch_per_device=8, scenario="offline")
    request = make_request(network, device=GPU, work=work)
    ours, plain = captured.build(request), build(request)
    for seed in (0, 1):  # new weights: the graph is captured again
        for program in (ours, plain):
            program.load(network.draw(seed))
        for number in range(4):
            batch = make_batch(network, 8, number)
            found, wanted = (p.fetch(p.infer(p.place(batch))) for p in (ours, plain))
            assert np.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert ours.not_captured == ""
    for program in (ours, plain):
        program.close()
