"""Every network in every installed framework: from the same weights and batch, what PyTorch
computes.

The measure is the largest difference in an array by the reference's largest value there; of several
arrays the worst counts. In fp64 it is at most 1e-9 for the loss, the gradients and the statistics
of normalizations of a first step, and for weights and evaluation scores after five, each from
PyTorch's weights (differences in the last digit grow from step to step). In fp32 a framework may be
four times as far from fp64 as PyTorch's fp32 is, in outputs, statistics and gradients each (a
gradient is the change of a weight, so fp32 says little of one far smaller than its weight). PyTorch
itself is compared with handwritten networks in pytorch/test_module.py. Dropout is removed, since
frameworks draw different numbers.

Compiling the deep networks takes minutes, so they are marked `sweep`, and so is most of what
pytorch-compiled does; CONTRIBUTING.md has the command. `--junitxml=FILE` stores each distance.
"""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import BatchNorm, Convolution, LayerNorm
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.vit import vit
from layer_samples import (
    DISTINCT,
    NARROW,
    clicks,
    decoder,
    dilated,
    fed,
    gated,
    mixed,
    recurrences,
)
from loadable_frameworks import TRAINING

LIMIT = 1e-9
RATE = 0.01
CLASSES = 5
LOSSES = ("loss", "second loss", "third loss", "fourth loss")
"""In fp32 the distance of a single number is a matter of luck: that of ResNet-50's loss differs
tenfold from one batch to the next."""
FARTHEST = {"keras-torch": 5}
"""Framework → multiple of PyTorch's own distance in fp32, where it is not 4: Keras adds in another
order, in nhwc, in which PyTorch itself is twice as far in AlexNet's scores."""
OTHERS = [n for n in TRAINING if n not in ("null", "pytorch")]
SWEEP = (pytest.mark.sweep,)


TOKENS = {"sequence_length": 7, "vocabulary": 20, "hidden": 12}
_NORMALIZED = ("resnet", "inception", "efficientnet")
IMAGE_SIZES = {name: 64 for name in networks.NETWORKS if name.startswith(_NORMALIZED)}
"""Where the smallest image would leave normalizations next to nothing to average."""
SMALLER = {
    "gpt2": lambda: gpt("gpt2", 12, 20, width=24, depth=2, heads=3),
    "vit-b16": lambda: vit("vit-b16", 32, CLASSES, width=24, depth=2, heads=3),
    **{
        name: NARROW[name]
        for name in (
            "bert-base",
            "llama3-8b",
            "mixtral-8x7b",
            "convnext-t",
            "unet",
            "detectnet-little",
        )
    },
    "clicks": clicks,
    "mixed": mixed,
    "gated": gated,
    "decoder": decoder,
    "dilated": dilated,
    "fed": fed,
    "recurrences": recurrences,
}
"""Where sizes alone do not make a network small, one of its family; and one of our own."""
QUICK = {
    *("little-cnn", "cifarnet", "mixed", "vit-b16", "gpt2", "translator", "translator-plain"),
    *("gated", "decoder", "dilated", "fed", "recurrences", "bert-base", "llama3-8b"),
    *("mixtral-8x7b", "clicks", "dlrm-small"),
}


def build(name):
    if name in SMALLER:
        return SMALLER[name]()
    line = networks.NETWORKS[name]
    size = max(line.smallest_image_size, IMAGE_SIZES.get(name, 0))
    sizes = TOKENS | {"image_size": size, "classes": CLASSES}
    return networks.build(name, **{size: sizes[size] for size in line.sizes})


NAMES = tuple(dict.fromkeys((*DISTINCT, *SMALLER)))


def cases(quick=QUICK, names=NAMES):
    """(framework, name) of each; of pytorch-compiled little always runs, for it traces slowly."""
    found = []
    for framework in OTHERS:
        always = {"little-cnn"} & quick if framework == "pytorch-compiled" else quick
        for name in names:
            marks = () if name in always else SWEEP
            found.append(pytest.param(framework, name, id=f"{framework}-{name}", marks=marks))
    return found


@pytest.fixture
def program(make_request, without_dropout, monkeypatch):
    """(framework, network, settings) → a program; skipped where a layer is not lowered. What
    compiles is traced and run without making machine code, as in test_contract.py."""
    made = []

    def make(framework, network, **settings):
        loaded = FRAMEWORKS[framework].load()
        able = loaded.capabilities()
        if not able.devices:
            pytest.skip(able.hint)
        if hasattr(loaded, "BACKEND"):
            monkeypatch.setattr(loaded, "BACKEND", "aot_eager")
        settings = {"layout": max(able.layouts, key="nchw".__eq__), "momentum": 0.0, **settings}
        try:
            made.append(loaded.build(make_request(without_dropout(network), **settings)))
        except Unsupported as refusal:
            pytest.skip(str(refusal))
        return made[-1]

    yield make
    for one in made:
        one.close()


def draw(network):
    """Weights of `network`, its state not the trivial one. Running means are small: large ones
    would leave a deep network nothing above zero, and its scores those of the last bias."""
    weights, rng = network.draw(2), np.random.default_rng(3)
    for name in network.state:
        low, high = (-0.1, 0.1) if name.endswith("running_mean") else (0.5, 1.5)
        weights[name] = rng.uniform(low, high, weights[name].shape).astype(np.float32)
    return weights


def farthest(ours, theirs):
    """(the measure, the array it is in)."""
    assert list(ours) == list(theirs)
    return max(
        (float(np.abs(ours[n] - t).max() / (np.abs(t).max() + 1e-30)), n) for n, t in theirs.items()
    )


def adapted(network):
    """Parameters with a gradient. A bias of keys has none but of rounding: it adds the same to all
    scores of a query, and their softmax stays."""
    return [name for name in network.parameters if not name.endswith("attention.self.key.bias")]


def five_steps(ours, theirs, network, make_batch, turned=dict):
    """(what ours finds, what theirs does) in five steps, all from theirs' weights; `turned` is
    what ours makes of arrays it is given or asked for."""
    theirs.load(draw(network))
    found = {}, {}
    for seed in range(5):
        before = theirs.state()
        ours.load(turned(before))
        for program, values in zip((ours, theirs), found, strict=True):
            program.train_step(program.place(make_batch(network, 4, seed)))
            state = program.state() if program is theirs else turned(program.state())
            values.update(state)
            if seed == 0:  # the change of a weight in such a step is rate times its gradient
                values["loss"] = np.array(program.loss())
                values.update({f"∂{n}": (before[n] - state[n]) / RATE for n in adapted(network)})
                values.update({f"first {n}": state[n] for n in network.state})
    for program, values in zip((ours, theirs), found, strict=True):
        values["scores"] = program.evaluate(program.place(make_batch(network, 4, 99)))
    assert np.ptp(values["scores"], axis=0).any()  # the scores depend on the input
    return found


@pytest.mark.parametrize(("framework", "name"), cases())
def test_equal_to_pytorch_in_fp64(framework, name, program, make_batch, record_property):
    network = build(name)
    step = {"precision": "fp64", "learning_rate": RATE}
    pair = [program(f, network, **step) for f in (framework, "pytorch")]
    distance, where = farthest(*five_steps(*pair, network, make_batch))
    record_property("distance", distance)
    assert distance <= LIMIT, where


@pytest.mark.parametrize(("framework", "name"), cases())
def test_fp32_is_as_close_to_fp64_as_pytorch_s(
    framework, name, program, make_batch, record_property
):
    network = build(name)
    weights = draw(network)

    def first_step(framework, precision):
        """Scores; the losses of a few batches; the first one's gradients and statistics."""
        one = program(framework, network, precision=precision, learning_rate=1.0)
        one.load(weights)
        found = {"scores": one.evaluate(one.place(make_batch(network, 4, 99)))}
        for loss in reversed(LOSSES):  # the first batch comes last: its step is looked at
            one.load(weights)
            one.train_step(one.place(make_batch(network, 4, LOSSES.index(loss))))
            found[loss] = np.array(one.loss())
        state = one.state()
        found |= {name: state[name] for name in network.state}
        found |= {name: weights[name] - state[name] for name in network.parameters}
        return found

    ours, theirs = first_step(framework, "fp32"), first_step("pytorch", "fp32")
    reference = first_step("pytorch", "fp64")
    kinds = {  # separate: a gradient much smaller than its weight is lost in the weight's digits
        "outputs": [*LOSSES, "scores"],
        "statistics": list(network.state),
        "gradients": adapted(network),
    }
    for kind, names in kinds.items():
        if names:
            wanted, *found = ({n: one[n] for n in names} for one in (reference, theirs, ours))
            (own, _), (distance, where) = (farthest(one, wanted) for one in found)
            record_property(kind, f"{distance:.1e}, PyTorch's {own:.1e}")
            assert own > 1e-9  # it did compute in fp32
            assert distance <= FARTHEST.get(framework, 4) * own, where


@pytest.mark.parametrize(("framework", "name"), cases({"little-cnn", "mixed"}, sorted(QUICK)))
def test_equal_in_every_layout(framework, name, program, make_batch):
    network = build(name)
    layouts = FRAMEWORKS[framework].load().capabilities().layouts
    if len(layouts) == 1:
        pytest.skip(f"{framework} offers one layout here, that of all other tests")
    step = {"precision": "fp64", "learning_rate": RATE}
    for layout in layouts - {"nchw"}:
        ours = program(framework, network, layout=layout, **step)
        theirs = program("pytorch", network, **step)
        distance, where = farthest(*five_steps(ours, theirs, network, make_batch))
        assert distance <= LIMIT, where


OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "weight_decay": 0.01, "momentum": 0.9},
    "rmsprop": {"learning_rate": 0.001, "weight_decay": 0.01},
    "adam": {"learning_rate": 0.001, "weight_decay": 0.01},
    "adamw": {"learning_rate": 0.001, "weight_decay": 0.1},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("framework", "name"), cases({"mixed"}, ["mixed"]))
def test_three_steps_with_each_optimizer(framework, name, optimizer, program, make_batch):
    if optimizer not in FRAMEWORKS[framework].load().capabilities().optimizers:
        pytest.skip(f"{framework} does not offer {optimizer}")
    network, found = build(name), []
    settings = {"precision": "fp64", "optimizer": optimizer, **OPTIMIZERS[optimizer]}
    for one in (program(f, network, **settings) for f in (framework, "pytorch")):
        one.load(draw(network))
        losses = []
        for seed in range(3):
            one.train_step(one.place(make_batch(network, 4, seed)))
            losses.append(one.loss())
        found.append({"losses": np.array(losses), **one.state()})
    distance, where = farthest(*found)
    assert distance <= LIMIT, where


def small_cnn():
    """A convolution whose padding does not change its result's size, and a normalization."""
    net = NetworkBuilder("small-cnn")
    x = net.conv(net.input("image", (3, 8, 8)), 4, kernel=3, stride=4, padding=1, bias=False)
    net.classify(net.linear(net.flatten(net.relu(net.batch_norm(x))), CLASSES))
    return net.build()


def small_lstm():
    net = NetworkBuilder("small-lstm")
    x = net.embedding(net.token_input("tokens", 4, 11), 6)
    net.classify(net.linear(net.layer_norm(net.lstm(x, 5, name="lstm")), 11))
    return net.build()


MUTATIONS = {
    "nothing": (BatchNorm, {}),
    "epsilon": (BatchNorm, {"epsilon": 1.1e-5}),
    "momentum": (BatchNorm, {"momentum": 0.11}),
    "padding": (Convolution, {"padding": (0, 0)}),
    "layer-norm-nothing": (LayerNorm, {}),
    "layer-norm-epsilon": (LayerNorm, {"epsilon": 1.1e-5}),
}


@pytest.mark.parametrize(("framework", "mutation"), cases(set(MUTATIONS), MUTATIONS))
def test_the_comparison_detects_one_changed_setting(framework, mutation, program, make_batch):
    kind, setting = MUTATIONS[mutation]
    network = small_lstm() if kind is LayerNorm else small_cnn()
    nodes = tuple(
        dataclasses.replace(node, layer=dataclasses.replace(node.layer, **setting))
        if isinstance(node.layer, kind)
        else node
        for node in network.nodes
    )
    step = {"precision": "fp64", "learning_rate": RATE}
    changed = program(framework, dataclasses.replace(network, nodes=nodes), **step)
    pair = changed, program("pytorch", network, **step)
    distance, _ = farthest(*five_steps(*pair, network, make_batch))
    assert (distance <= LIMIT) == (not setting)


def gates(order):
    """What a program would make of the LSTM's arrays whose gates lay in `order`."""

    def turn(arrays):
        found = dict(arrays)
        for name in arrays:
            if name.startswith("lstm."):
                i, f, g, o = np.split(arrays[name], 4)
                found[name] = np.concatenate(
                    [{"i": i, "f": f, "g": g, "o": o}[gate] for gate in order]
                )
        return found

    return turn


@pytest.mark.parametrize(
    ("framework", "order"), cases({"ifgo", "figo", "ifog"}, ["ifgo", "figo", "ifog"])
)
def test_the_comparison_detects_another_order_of_gates(framework, order, program, make_batch):
    network = small_lstm()
    step = {"precision": "fp64", "learning_rate": RATE}
    pair = [program(f, network, **step) for f in (framework, "pytorch")]
    distance, _ = farthest(*five_steps(*pair, network, make_batch, turned=gates(order)))
    assert (distance <= LIMIT) == (order == "ifgo")
