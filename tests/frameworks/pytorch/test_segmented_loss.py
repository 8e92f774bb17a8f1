"""A network's loss by segments: what it computes by any choice, and which are chosen."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch import segmented_loss
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.program import total_loss
from cubemesh.frameworks.pytorch.segmented_loss import SegmentedLoss
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Activation
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.translator import translator


class Timer:
    """In place of CUDA events: runs both passes, and takes its times from a script."""

    def __init__(self, *times):
        self.times, self.calls = list(times), 0

    def __call__(self, forward, wanted, join):
        results = [result for result in forward() if result.requires_grad]
        ones = [torch.ones_like(result) for result in results]
        torch.autograd.grad(results, list(wanted), ones, allow_unused=True)
        join()
        found = self.times[self.calls % len(self.times)]
        self.calls += 1
        if found is None:
            raise RuntimeError("out of memory")
        return found


class Compiler:
    """In place of Inductor: remembers the functions."""

    def __init__(self):
        self.compiled = []

    def __call__(self, function):
        self.compiled.append(function)
        return function


def branches():
    """Two heads, a value that is read across segments, and a residual block without fusions."""
    net = NetworkBuilder("branches")
    x = net.input("image", (3, 8, 8))
    with net.segment("stem"):
        x = net.relu(net.batch_norm(net.conv(x, 8, kernel=3, padding=1, bias=False)))
    with net.segment("block"):
        y = net.relu(net.conv(x, 8, kernel=3, padding=1))
        y = net.add(y, x)
    with net.segment("first"):
        side = net.linear(net.global_average_pool(y), 5)
    with net.segment("second"):
        z = net.max_pool(net.relu(net.conv(net.add(y, x), 8, kernel=3, padding=1)), 2)
        final = net.linear(net.flatten(z), 5)
    net.classify(side, weight=0.3, train_only=True)
    net.classify(final)
    return net.build()


def segmented(network, batch, *, merge=True, compiler=None):
    built = build_modules(network, dtype=torch.float64, overwrite=False)
    built.load(network.draw(0))
    loss = partial(total_loss, network.heads)
    ours = SegmentedLoss(built, FusedNetwork(built), loss, merge=merge)
    placed = [torch.from_numpy(array) for array in (*batch.inputs, batch.labels)]
    placed = [p.double() if p.is_floating_point() else p for p in placed]
    ours.choose(placed, compiler, lambda run: run())
    return ours, built, placed, loss


def loss_and_gradients(run, built):
    for parameter in built.parameters.values():
        parameter.grad = None
    loss = run()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in built.parameters.items()}


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize(
    "times", [(1.0, 2.0), (2.0, 1.0), (2.0, 1.0, 1.0, 2.0), (1.0, 2.0, 2.0, 1.0), (None, 1.0)]
)
def test_any_choice_computes_the_loss(times, merge, make_batch, monkeypatch):
    monkeypatch.setattr(segmented_loss, "step_ms", Timer(*times))
    network, compiler = branches(), Compiler()
    ours, built, placed, loss = segmented(
        network, make_batch(network, 4), merge=merge, compiler=compiler
    )
    *inputs, labels = placed
    found = loss_and_gradients(lambda: ours(*placed), built)
    want = loss_and_gradients(lambda: loss(built.training(*inputs), labels), built)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)
    assert [c.segment for c in ours.choices] == ["stem", "block", "first", "second"]
    assert all(c.milliseconds[c.implementation] <= 1.0 for c in ours.choices)


def test_equal_segments_are_timed_once_and_neighbours_compiled_as_one(make_batch, monkeypatch):
    monkeypatch.setattr(segmented_loss, "step_ms", timer := Timer(2.0, 1.0))
    network, compiler = gpt("small", 4, 30, width=16, depth=3, heads=2), Compiler()
    ours, *_ = segmented(network, make_batch(network, 2), compiler=compiler)
    assert len(ours.choices) == 5
    assert {c.implementation for c in ours.choices} == {"Inductor"}
    assert timer.calls == 2 * 3, "embeddings, a block, the head"
    assert len(compiler.compiled) == 3 + 1


def test_the_loss_of_many_classes_is_a_part_of_its_own(make_batch, monkeypatch):
    monkeypatch.setattr(segmented_loss, "FEWEST_LOSS_CLASSES", 30)
    monkeypatch.setattr(segmented_loss, "step_ms", Timer(1.0, 2.0))
    network = gpt("small", 4, 30, width=16, depth=3, heads=2)
    ours, built, placed, loss = segmented(network, make_batch(network, 2), compiler=Compiler())
    assert [c.segment for c in ours.choices[-2:]] == ["head", segmented_loss.LOSS]
    found = loss_and_gradients(lambda: ours(*placed), built)
    want = loss_and_gradients(lambda: loss(built.training(placed[0]), placed[1]), built)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("times", [(1.0, 2.0), (2.0, 1.0)])
def test_segments_are_divided_at_recurrent_layers(times, make_batch, monkeypatch):
    monkeypatch.setattr(segmented_loss, "FEWEST_LOSS_CLASSES", 30)
    monkeypatch.setattr(segmented_loss, "step_ms", Timer(*times))
    network, compiler = translator(5, 30, 8), Compiler()
    ours, built, placed, loss = segmented(network, make_batch(network, 2), compiler=compiler)
    assert [c.segment for c in ours.choices] == [
        "encoder", "encoder.lstm", "decoder", "decoder.lstm", "attention", "output",
        segmented_loss.LOSS,
    ]  # fmt: skip
    recurrent = {c.segment: set(c.milliseconds) for c in ours.choices if "lstm" in c.segment}
    assert set(map(frozenset, recurrent.values())) == {frozenset({"operations"})}
    *inputs, labels = placed
    found = loss_and_gradients(lambda: ours(*placed), built)
    want = loss_and_gradients(lambda: loss(built.training(*inputs), labels), built)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)


def test_gated_convolutions_are_compiled_beside_kernels_of_normalizations(make_batch):
    net = NetworkBuilder("gated")
    x = net.input("image", (3, 8, 8))
    for name in ("plain", "gated"):
        with net.segment(name):
            x = net.batch_norm(net.conv(x, 8, kernel=3, padding=1, bias=False))
            x = net.relu(x) if name == "plain" else net.add_layer(Activation(function="silu"), x)
    with net.segment("head"):
        x = net.linear(net.global_average_pool(x), 5)
    net.classify(x)
    network = net.build()
    ours, *_ = segmented(network, make_batch(network, 2))
    for norm in ours.fused.norms.values():
        norm.kernels = object()
    found = {part.stage.name: ours._compiles(part) for part in ours._parts()}
    assert found == {"plain": False, "gated": True, "head": True}


def test_a_batch_of_another_shape_is_not_compiled_again(make_batch, monkeypatch):
    monkeypatch.setattr(segmented_loss, "step_ms", Timer(2.0, 1.0))
    network, compiler = branches(), Compiler()
    ours, built, placed, loss = segmented(network, make_batch(network, 4), compiler=compiler)
    smaller = [array[:2] for array in placed]
    with monkeypatch.context() as context:
        context.setattr(ours, "_plan", [])  # would fail
        found = ours(*smaller)
    assert found.item() == pytest.approx(loss(built.training(smaller[0]), smaller[1]).item())


def test_without_a_compiler_pytorch_s_operations_run(make_batch, monkeypatch):
    monkeypatch.setattr(segmented_loss, "step_ms", Timer(1.0))
    network = branches()
    ours, *_ = segmented(network, make_batch(network, 4))
    assert {c.implementation for c in ours.choices} == {"operations"}
    ours.close()
