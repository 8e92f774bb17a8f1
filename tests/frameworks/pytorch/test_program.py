import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import SupportsProcessSettings
from cubemesh.frameworks.pytorch import build
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.schema.work import Forward

OPTIMIZERS = {
    "sgd": (
        {"momentum": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "rmsprop": ({}, lambda p: torch.optim.RMSprop(p, 0.001, foreach=False)),
    "adam": ({"weight_decay": 0.01}, lambda p: torch.optim.Adam(p, 0.001, weight_decay=0.01)),
    "adamw": ({"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.001, weight_decay=0.1)),
}
RATES = {"sgd": 0.05, "rmsprop": 0.001, "adam": 0.001, "adamw": 0.001}


def without_dropout(module):
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [*((n, o) for n in ("little-cnn", "cifarnet") for o in OPTIMIZERS), ("resnet-18", "sgd")],
)
def test_three_steps_equal_handwritten_training(
    network, optimizer, make_request, make_batch, handwritten, set_weights
):
    network = networks.build(network, 32 if network == "resnet-18" else 16, 10)
    fields, make = OPTIMIZERS[optimizer]
    request = make_request(
        network,
        precision="fp64",
        optimizer=optimizer,
        learning_rate=RATES[optimizer],
        **fields,
    )
    program = build(request)
    program.load(network.draw(2))
    without_dropout(program.module)
    size = network.inputs[0].shape[1]
    model = set_weights(handwritten.NETWORKS[network.name](size, 10), network, network.draw(2))
    without_dropout(model)
    reference = make(model.parameters())
    for seed in range(3):
        batch = make_batch(network, 4, seed)
        program.train_step(program.place(batch))
        reference.zero_grad()
        images = torch.from_numpy(batch.images).double()
        loss = F.cross_entropy(model(images), torch.from_numpy(batch.labels))
        loss.backward()
        reference.step()
        assert program.loss() == pytest.approx(loss.item(), rel=1e-8)
    state = program.state()
    for name, theirs in zip(network.parameters, model.parameters(), strict=True):
        np.testing.assert_allclose(state[name], theirs.detach().numpy(), rtol=1e-6, atol=1e-8)


def test_the_loss_is_the_heads_weighted_sum(make_request, make_batch):
    net = NetworkBuilder("two-heads")
    x = net.flatten(net.input("image", (3, 4, 4)))
    net.classify(net.linear(x, 10), weight=0.3, train_only=True)
    net.classify(net.linear(x, 10))
    network = net.build()
    program = build(make_request(network, precision="fp64"))
    program.load(network.draw(0))
    batch = make_batch(network)
    placed = program.place(batch)
    side, main = program.module(placed[0])
    expected = 0.3 * F.cross_entropy(side, placed[1]) + F.cross_entropy(main, placed[1])
    program.forward(placed)
    assert program.loss() == pytest.approx(expected.item())
    program.train_step(placed)
    assert program.loss() == pytest.approx(expected.item())
    assert program.evaluate(placed).shape == (4, 10)


def test_evaluation_is_without_dropout_and_training_goes_on_with_it(make_request, make_batch):
    program = build(make_request())
    program.load(networks.build("little-cnn", 16, 10).draw(0))
    placed = program.place(make_batch(networks.build("little-cnn", 16, 10)))

    def losses():
        values = set()
        for _ in range(4):
            program.forward(placed)
            values.add(program.loss())
        return values

    assert len(losses()) == 4
    scores = [program.evaluate(placed) for _ in range(2)]
    assert np.array_equal(*scores)
    assert len(losses()) == 4


def test_dropout_is_the_same_for_the_same_seed(make_request, make_batch):
    def loss(seed):
        request = make_request(seed=seed)
        program = build(request)
        program.load(request.network.draw(0))
        program.forward(program.place(make_batch(request.network)))
        return program.loss()

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)


def test_before_the_first_step_there_is_no_loss(make_request):
    assert np.isnan(build(make_request()).loss())


def test_gradients_do_not_accumulate_over_steps(make_request, make_batch):
    request = make_request(precision="fp64", learning_rate=0.0)
    program = build(request)
    program.load(request.network.draw(0))
    without_dropout(program.module)
    placed = program.place(make_batch(request.network))
    gradients = []
    for _ in range(2):
        program.train_step(placed)
        gradients.append(program.module.get_parameter("fc2.bias").grad.clone())
    torch.testing.assert_close(*gradients)


def test_loading_resets_the_optimizer(make_request, make_batch):
    request = make_request(precision="fp64", momentum=0.9)
    program = build(request)
    without_dropout(program.module)
    placed = program.place(make_batch(request.network))
    ends = []
    for _ in range(2):
        program.load(request.network.draw(0))
        program.train_step(placed)
        program.train_step(placed)
        ends.append(program.state()["fc2.weight"])
    np.testing.assert_allclose(*ends, rtol=1e-12)


def test_forward_work_has_no_optimizer(make_request, make_batch):
    work = Forward(network="little-cnn", batch_per_device=4)
    request = make_request(work=work)
    program = build(request)
    program.load(request.network.draw(0))
    placed = program.place(make_batch(request.network))
    program.forward(placed)
    assert np.isfinite(program.loss())
    with pytest.raises(UsageError, match="no optimizer"):
        program.train_step(placed)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_placed_batch_has_the_program_s_layout_and_type(layout, make_request, make_batch):
    request = make_request(layout=layout, precision="fp64")
    batch = make_batch(request.network)
    images, labels = build(request).place(batch)
    formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    assert images.is_contiguous(memory_format=formats[layout])
    assert images.dtype == torch.float64
    assert np.array_equal(images.numpy(), batch.images)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("network", ["cifarnet", "resnet-18"])
def test_channels_last_equals_contiguous(network, make_request, make_batch):
    network = networks.build(network, 32, 10)
    states = []
    for layout in ("nchw", "nhwc"):
        program = build(make_request(network, layout=layout, precision="fp64"))
        program.load(network.draw(0))
        program.train_step(program.place(make_batch(network)))
        states.append(program.state())
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], rtol=1e-7, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_computes_in_low_precision_with_master_weights(
    precision, make_request, make_batch
):
    request = make_request(precision=precision)
    program, exact = build(request), build(make_request(precision="fp64"))
    kinds = []
    convolution = program.module.get_submodule("conv2")
    convolution.register_forward_hook(lambda m, i, output: kinds.append(output.dtype))
    for p in (program, exact):
        without_dropout(p.module)
        p.load(request.network.draw(0))
        p.train_step(p.place(make_batch(request.network)))
    assert kinds == [{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]]
    assert program.loss() == pytest.approx(exact.loss(), rel=0.02)
    assert program.loss() != pytest.approx(exact.loss(), rel=1e-7)
    moved, reference, drawn = program.state(), exact.state(), request.network.draw(0)
    for name, array in moved.items():
        assert array.dtype == np.float32
        step, expected = array - drawn[name], reference[name] - drawn[name]
        share = {"bf16": 0.2, "fp16": 0.1}[precision]
        assert np.linalg.norm(step - expected) < share * np.linalg.norm(expected), name


def test_the_loss_decreases(make_request, make_batch):
    request = make_request("little-cnn", optimizer="adam", learning_rate=0.001)
    program = build(request)
    program.load(request.network.draw(0))
    without_dropout(program.module)
    placed = program.place(make_batch(request.network, 8))
    for _ in range(30):
        program.train_step(placed)
    right = program.evaluate(placed).argmax(axis=1) == placed[1].numpy()
    assert right.mean() > 0.9


def test_closing_frees_memory(make_request):
    import gc
    import weakref

    program = build(make_request())
    weight = weakref.ref(program.module.get_parameter("fc1.weight"))
    program.close()
    gc.collect()
    assert weight() is None


def test_a_program_restores_its_process_settings(make_request):
    network = networks.build("little-cnn", 16, 10)
    before = torch.get_num_threads()
    try:
        one = build(dataclasses.replace(make_request(network), threads=1))
        build(dataclasses.replace(make_request(network), threads=2))
        assert torch.get_num_threads() == 2
        assert isinstance(one, SupportsProcessSettings)
        one.apply_process_settings()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
