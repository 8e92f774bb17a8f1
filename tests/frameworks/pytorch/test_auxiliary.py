"""Branches that meet and a head for training only, against the same network written by hand."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn

from cubemesh import networks
from cubemesh.frameworks.pytorch import build
from cubemesh.networks.builder import NetworkBuilder


def small_inception(weight=0.4):
    net = NetworkBuilder("small-inception")
    x = net.input("image", (3, 8, 8))
    x = net.conv_norm_relu(x, "stem", 6, kernel=3, stride=2, padding=1)
    one = net.conv_norm_relu(x, "one", 4, kernel=1)
    three = net.conv_norm_relu(x, "three", 5, kernel=3, padding=1)
    mean = net.conv_norm_relu(net.average_pool(x, 3, stride=1, padding=1), "mean", 3, kernel=1)
    x = net.concat(one, three, mean, name="concat")
    side = net.conv_norm_relu(net.average_pool(x, 2), "side", 4, kernel=1)
    net.classify(net.linear(net.flatten(side), 10, name="side_fc"), weight=weight, train_only=True)
    net.classify(net.linear(net.global_average_pool(x), 10, name="fc"))
    return net.build()


class Unit(nn.Module):
    def __init__(self, before, after, kernel, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Unit(3, 6, 3, 2)
        self.one, self.three, self.mean = Unit(6, 4, 1), Unit(6, 5, 3), Unit(6, 3, 1)
        self.side, self.side_fc = Unit(12, 4, 1), nn.Linear(16, 10)
        self.fc = nn.Linear(12, 10)

    def forward(self, x):
        x = self.stem(x)
        mean = self.mean(F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=True))
        x = torch.cat([self.one(x), self.three(x), mean], 1)
        scores = self.fc(x.mean((2, 3)))
        if not self.training:
            return scores
        return scores, self.side_fc(self.side(F.avg_pool2d(x, 2)).flatten(1))


@pytest.fixture
def pair(make_request, set_weights):
    """(program, the same by hand), in float64 with equal weights."""
    network = small_inception()
    program = build(make_request(network, precision="fp64", learning_rate=0.1, momentum=0.9))
    program.load(network.draw(4))
    return program, set_weights(ByHand(), network, network.draw(4))


def test_losses_gradients_and_updates_equal_those_of_handwritten_code(pair, make_batch):
    program, by_hand = pair
    reference = torch.optim.SGD(by_hand.parameters(), 0.1, momentum=0.9)
    for seed in range(3):
        batch = make_batch(small_inception(), 4, seed)
        program.train_step(program.place(batch))
        labels = torch.from_numpy(batch.labels)
        scores, side = by_hand(torch.from_numpy(batch.images).double())
        loss = F.cross_entropy(scores, labels) + 0.4 * F.cross_entropy(side, labels)
        reference.zero_grad()
        loss.backward()
        assert program.loss() == pytest.approx(loss.item(), rel=1e-9)
        for name, theirs in by_hand.named_parameters():
            own = program.module.get_parameter(name).grad
            torch.testing.assert_close(own, theirs.grad, rtol=1e-9, atol=1e-12, msg=name)
        reference.step()
    state = program.state()
    for name, theirs in by_hand.named_parameters():
        np.testing.assert_allclose(state[name], theirs.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_evaluation_equals_handwritten_code_without_the_auxiliary_head(pair, make_batch):
    program, by_hand = pair
    network = small_inception()
    run = []
    for name, layer in program.module.named_modules():
        layer.register_forward_hook(lambda *_, name=name: run.append(name))
    placed = program.place(make_batch(network))
    with torch.no_grad():
        program.forward(placed)
        by_hand(placed[0])
        assert {"side.conv", "side.bn", "side_fc"} <= set(run)
        run.clear()
        before = program.state()["side.bn.running_mean"]
        np.testing.assert_allclose(
            program.evaluate(placed), by_hand.eval()(placed[0]).numpy(), rtol=1e-9
        )
    assert "concat" in run
    assert set(run) <= {node.name for node in network.needed(network.output)}
    assert not any(name.startswith("side") for name in run)
    assert np.array_equal(program.state()["side.bn.running_mean"], before)


def test_the_weight_scales_the_gradient_of_the_auxiliary_head(make_request, make_batch):
    gradients = {}
    for weight in (0.0, 0.5, 1.0):
        network = small_inception(weight)
        program = build(make_request(network, precision="fp64"))
        program.load(network.draw(0))
        program.train_step(program.place(make_batch(network)))
        gradients[weight] = {n: p.grad for n, p in program.module.named_parameters()}
    assert not gradients[0.0]["side_fc.weight"].any()
    for name, alone in gradients[0.0].items():
        half, whole = (gradients[w][name] - alone for w in (0.5, 1.0))
        torch.testing.assert_close(2 * half, whole, rtol=1e-9, atol=1e-12, msg=name)
    torch.testing.assert_close(gradients[1.0]["fc.weight"], gradients[0.0]["fc.weight"])


@pytest.mark.parametrize(
    ("name", "heads"),
    [("googlenet", 1), ("googlenet-paper", 3), ("inception-bn", 1), ("inception-v3", 2)],
)
def test_the_inceptions_train_on_small_images(name, heads, make_request, make_batch):
    line = networks.entry(name)
    network = networks.build(name, line.smallest_image_size, 5)
    program = build(make_request(network))
    program.load(network.draw(0))
    placed = program.place(make_batch(network, 2))
    with torch.no_grad():
        assert [v.shape for v in program.module(placed[0])] == [(2, 5)] * heads
    program.train_step(placed)
    assert 0 < program.loss() < 50
    assert program.evaluate(placed).shape == (2, 5)
    state = program.state()
    moved = [n for n, drawn in network.draw(0).items() if not np.array_equal(state[n], drawn)]
    assert len(moved) > 0.9 * len(state)
