"""Recurrent networks of the zoo against modules of torch.nn with the same arrays: parameters,
scores and gradients. The layers themselves are in test_sequence_lowerings.py."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh import data, networks
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.pytorch.module import NetworkModule, build_modules
from cubemesh.networks import layers
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Head

WIDTH, WORDS, LENGTH = 6, 11, 5


class Decoder(nn.Module):
    """Two LSTM cells, attention and a readout that is an input of the next step, as OpenNMT's
    decoder with input feeding."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(2 * WIDTH, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.attention = nn.Linear(WIDTH, WIDTH, bias=False)
        self.readout = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, words, begin, memory):
        zero = torch.zeros_like(begin)
        one = two = (begin, zero)
        fed, found = zero, []
        for t in range(words.shape[1]):
            one = self.first(torch.cat([words[:, t], fed], 1), one)
            two = self.second(one[0], two)
            query = self.attention(two[0])
            shares = torch.softmax(torch.einsum("bpf,bf->bp", memory, query), 1)
            mean = (shares[:, :, None] * memory).sum(1)
            fed = torch.tanh(self.readout(torch.cat([mean, two[0]], 1)))
            found.append(fed)
        return torch.stack(found, 1)


class Translator2x(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.bridge = nn.Linear(WIDTH, WIDTH)
        self.target = nn.Embedding(WORDS, WIDTH)
        self.decoder = Decoder()
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, source, target):
        memory, _ = self.encoder(self.source(source))
        begin = torch.tanh(self.bridge(memory[:, -1]))
        return self.output(self.decoder(self.target(target), begin, memory))


class Speech(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, (41, 11), 2, (20, 5), bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.layers = nn.ModuleList(
            kind(width, WIDTH, bidirectional=True, batch_first=True, **settings)
            for width in (32 * 41, *[WIDTH] * 4)
        )
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.stack([frame.flatten(1) for frame in x.unbind(3)], 1)
        for layer in self.layers:
            y, _ = layer(x)
            x = y[..., :WIDTH] + y[..., WIDTH:]
        return self.output(x)


class Captioner(nn.Module):
    """Its encoder is the network's own: Inception-BN without its classifier."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.vector = nn.Linear(1024, WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, image, tokens):
        first = self.vector(self.encoder(image, tokens)[0])[None]
        y, _ = self.lstm(self.words(tokens), (first, torch.zeros_like(first)))
        return self.output(y)


MODULES = {
    "translator-2x": Translator2x,
    "deep-speech-gru": lambda: Speech(nn.GRU),
    "deep-speech-rnn": lambda: Speech(nn.RNN, nonlinearity="relu"),
}
SIZES = {"sequence_length": LENGTH, "vocabulary": WORDS, "hidden": WIDTH}


def inputs_of(network, samples=3):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(samples, *i.shape, dtype=torch.float64, generator=generator)
        if i.dtype == "float"
        else torch.randint(i.classes, (samples, *i.shape), generator=generator)
        for i in network.inputs
    ]


def compare(network, module, own, x):
    """Scores and gradients of `own`, parameters in the same order as those of `module`."""
    (found,), wanted = own.training.eval()(*x), module.eval()(*x)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert found.shape[1:] == network.shapes[network.output]
    pull = torch.randn_like(wanted)
    arrays = list(own.parameters.values()), list(module.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(found, arrays[0], pull),
        torch.autograd.grad(wanted, arrays[1], pull),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", MODULES)
def test_a_network_equals_modules_of_torch(name):
    network, module = networks.build(name, **SIZES), MODULES[name]().double()
    assert network.parameter_count == sum(p.numel() for p in module.parameters())
    own = build_modules(network, dtype=torch.float64)
    with torch.no_grad():
        for array in own.state.values():
            array.fill_(1.0)
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean.fill_(1.0)
        for ours, theirs in zip(own.parameters.values(), module.parameters(), strict=True):
            ours.copy_(theirs)
    compare(network, module, own, inputs_of(network))


def test_a_captioner_begins_from_its_image():
    network = networks.build("captioner", 11, **SIZES)
    own = build_modules(network, dtype=torch.float64)
    own.load(network.draw(0))
    module = Captioner(encoder_of(network, own)).double()
    heads = [p for n, p in own.parameters.items() if not n.startswith(("conv", "inception"))]
    with torch.no_grad():
        for ours, theirs in zip(heads, list(module.parameters())[-len(heads) :], strict=True):
            theirs.copy_(ours)
    image, tokens = inputs_of(network)
    (found,) = own.evaluation.eval()(image, tokens)
    torch.testing.assert_close(found, module.eval()(image, tokens), rtol=1e-9, atol=1e-9)
    (other,) = own.evaluation(1 - image, tokens)
    assert not torch.allclose(found, other)


def encoder_of(network, own):
    """The evaluated modules up to the mean of each channel."""
    return NetworkModule(network, (Head(value="avgpool", target="label"),), own.layers).eval()


@pytest.mark.parametrize("depth", [1, 3])
def test_a_decoder_with_input_feeding_of_other_depths(depth):
    """Each reads the h of the one below; with words of another width than its own."""
    net = NetworkBuilder("one")
    given = [net.input("words", (4, 3)), net.input("begin", (5,)), net.input("memory", (6, 5))]
    net.classify(net.input_feeding_decoder(*given, depth, name="decoder"))
    network = net.build()
    own = build_modules(network, dtype=torch.float64)
    own.load(network.draw(0))
    words, begin, memory = inputs_of(network)
    p = {role: own.parameters[n] for role, n in network.nodes[0].parameters.items()}
    hs, cells, fed = [begin] * depth, [torch.zeros_like(begin)] * depth, torch.zeros_like(begin)
    expected = []
    for t in range(4):
        x = torch.cat([words[:, t], fed], 1)
        for n, prefix in enumerate(("", "lstm2_", "lstm3_")[:depth]):
            now = x @ p[f"{prefix}weight"].T + hs[n] @ p[f"{prefix}hidden_weight"].T
            i, f, g, o = (now + p[f"{prefix}bias"] + p[f"{prefix}hidden_bias"]).chunk(4, 1)
            cells[n] = torch.sigmoid(f) * cells[n] + torch.sigmoid(i) * torch.tanh(g)
            hs[n] = x = torch.sigmoid(o) * torch.tanh(cells[n])
        shares = torch.softmax(torch.einsum("bpf,gf,bg->bp", memory, p["attention_weight"].T, x), 1)
        mean = torch.einsum("bp,bpf->bf", shares, memory)
        fed = torch.tanh(torch.cat([mean, x], 1) @ p["readout_weight"].T)
        expected.append(fed)
    (found,) = own.training(words, begin, memory)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-9, atol=1e-9)
    assert {type(n.layer) for n in network.nodes} == {layers.InputFeedingDecoder}


@pytest.mark.parametrize("name", [*MODULES, "captioner"])
def test_steps_on_made_data(name, make_request):
    """In bf16 with the channels last, and captured in fp32."""
    images = {"image_size": 43} if name == "captioner" else {}
    network = networks.build(name, **images, **SIZES)
    source = data.open_for(network, "synthetic", None, "train", seed=0, samples_needed=4)
    cases = {"pytorch": {"precision": "bf16", "layout": "nhwc"}, "pytorch-captured": {}}
    for framework, settings in cases.items():
        request = make_request(network, learning_rate=0.01, **settings)
        program = FRAMEWORKS[framework].load().build(request)
        program.load(network.draw(0))
        placed = program.place(source.batch(np.arange(4)))
        program.train_step(placed)
        first = program.loss()
        program.train_step(placed)
        assert np.isfinite(program.loss())
        assert program.loss() != first
        assert program.evaluate(placed).shape == (4, *network.shapes[network.output])
        program.close()
