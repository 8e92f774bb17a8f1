"""Mixture of experts against its formula, position by position, and its forecast memory."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: N812

from cubemesh.batches import PADDING
from cubemesh.frameworks.pytorch import build
from cubemesh.frameworks.pytorch.experts import _backward, _forward, has_grouped_kernel
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.networks.activation_memory import GradientFlow, saved_tensors
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Experts, LoadBalance
from cubemesh.networks.zoo.mixtral import BALANCE
from layer_samples import mixture_of_two_layers

WIDTH, FFN, EXPERTS, ACTIVE, LENGTH = 6, 5, 4, 2, 7


def mixture(active=ACTIVE):
    net = NetworkBuilder("mixture")
    x, scores = net.input("x", (LENGTH, WIDTH)), net.input("scores", (LENGTH, EXPERTS))
    layer = Experts(experts=EXPERTS, active=active, ffn=FFN)
    net.classify(net.add_layer(layer, x, scores, name="experts"))
    net.penalize(net.add_layer(LoadBalance(active=active), scores, scores, name="balance"), 0.5)
    return net.build()


def given(dtype=torch.float64):
    torch.manual_seed(3)
    x = torch.randn(3, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    scores = torch.randn(3, LENGTH, EXPERTS, dtype=dtype)
    scores[..., 1] -= 9  # an expert that no position chooses
    return x, scores.requires_grad_()


def by_position(x, scores, roles, active):
    rows = []
    for position, of_experts in zip(x.flatten(0, 1), scores.flatten(0, 1), strict=True):
        chosen = of_experts.argsort(descending=True)[:active]
        shares = torch.exp(of_experts[chosen]) / torch.exp(of_experts[chosen]).sum()
        total = 0
        for share, e in zip(shares, chosen, strict=True):
            gate, up = (roles[f"{role}_weight"][e] @ position for role in ("gate", "up"))
            total = total + share * (roles["down_weight"][e] @ (gate * torch.sigmoid(gate) * up))
        rows.append(total)
    return torch.stack(rows).view(x.shape)


@pytest.mark.parametrize("active", [1, 2, 4])
def test_each_position_is_computed_by_the_experts_that_it_chooses(active):
    network = mixture(active)
    built = build_modules(network, dtype=torch.float64)
    with torch.no_grad():
        for array in built.parameters.values():
            array.normal_()
    roles = {r: built.parameters[n] for r, n in network.nodes[0].parameters.items()}
    x, scores = given()
    found, _ = built.training(x, scores)
    expected = by_position(x, scores, roles, active)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    pull, leaves = torch.randn_like(expected), [x, scores, *roles.values()]
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, pull),
        torch.autograd.grad(expected, leaves, pull),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_the_load_balancing_loss_is_that_of_switch_transformers():
    """By hand: for each router, experts times the sum of share of choices times mean probability;
    1 where choices and probabilities are even."""
    built = build_modules(mixture(), dtype=torch.float64)
    built.load(mixture().draw(0))
    x, scores = given()
    _, balance = built.training(x, scores)
    flat = scores.detach().flatten(0, 1)
    chosen = flat.topk(ACTIVE, -1).indices.flatten().tolist()
    shares = [chosen.count(e) / len(chosen) for e in range(EXPERTS)]
    means = flat.softmax(-1).mean(0).tolist()
    of_router = EXPERTS * sum(f * p for f, p in zip(shares, means, strict=True))
    assert balance.mean().item() == pytest.approx(2 * of_router)
    even = torch.eye(EXPERTS, dtype=torch.float64).repeat(7, 1).view(4, LENGTH, EXPERTS)
    even = even + even.roll(1, -1)
    _, balance = built.training(torch.zeros(4, LENGTH, WIDTH, dtype=torch.float64), even)
    assert balance.mean().item() == pytest.approx(2)


def test_the_loss_of_training_has_the_penalty_and_an_evaluation_has_not(make_request, make_batch):
    network = mixture_of_two_layers()
    program = build(make_request(network, precision="fp64", learning_rate=0.0, momentum=0.0))
    program.load(network.draw(0))
    placed = program.place(make_batch(network, 4))
    program.train_step(placed)
    with torch.no_grad():
        scores, balance = program.module(placed[0])
    cross_entropy = F.cross_entropy(scores.flatten(0, 1), placed[1].flatten(), ignore_index=PADDING)
    assert program.loss() == pytest.approx((cross_entropy + BALANCE * balance.mean()).item())
    assert 2 <= balance.mean().item() < 4  # two routers, each at least 1
    assert program.evaluate(placed).shape == (4, 8, 300)


def test_what_is_saved_is_forecast():
    """By an embedding, a router and experts; the batch itself is in memory anyway."""
    net = NetworkBuilder("mixture")
    x = net.embedding(net.token_input("tokens", LENGTH, 9), WIDTH)
    scores = net.linear(x, EXPERTS, bias=False)
    layer = Experts(experts=EXPERTS, active=ACTIVE, ffn=FFN)
    net.classify(net.add_layer(layer, x, scores))
    net.penalize(net.add_layer(LoadBalance(active=ACTIVE), scores), 0.5)
    network = net.build()
    built = build_modules(network)
    built.load(network.draw(0))
    tokens = torch.randint(9, (3, LENGTH))
    own = {array.untyped_storage().data_ptr() for array in (tokens, *built.parameters.values())}
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result, _ = built.training(tokens)
    found = sum(t.untyped_storage().nbytes() for pointer, t in saved.items() if pointer not in own)
    arrays = saved_tensors(GradientFlow(network))
    forecast = sum(a.size_bytes(3, 4) for node in arrays.values() for a in node)
    assert result.requires_grad
    assert forecast == pytest.approx(found, rel=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
def test_the_grouped_kernel_equals_a_product_for_each_expert():
    device = "cuda"
    if not has_grouped_kernel(device, torch.bfloat16):
        pytest.skip("no grouped kernel on this GPU")
    torch.manual_seed(0)
    rows, weight = torch.randn(48, 32), torch.randn(4, 64, 32)
    ends, pull = torch.tensor([16, 16, 41, 48], dtype=torch.int32), torch.randn(48, 64)
    low = [array.bfloat16() for array in (pull, rows, weight)]
    expected = [_forward(low[1].float(), low[2].float(), ends)]
    expected += _backward(*(array.float() for array in low), ends)
    on_device = [array.to(device) for array in low]
    found = [_forward(on_device[1], on_device[2], ends.to(device))]
    found += _backward(*on_device, ends.to(device))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu().float(), theirs, rtol=0.02, atol=0.1)
