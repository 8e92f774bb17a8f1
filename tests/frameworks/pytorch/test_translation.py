"""Translation token by token: greedy search against whole passes, beam search against all texts."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.contract.translation import BeamSearch, SupportsTranslation
from cubemesh.frameworks.pytorch import build as build_program
from cubemesh.networks import build
from cubemesh.parallel import strategies
from cubemesh.schema import Forward, Infer, Placement, ProgramSettings

TRANSLATORS = ["translator", "translator-plain", "translator-2x"]
BEGIN, END = 2, 3


def program_of(name, *, length=6, vocabulary=9, device="cpu", precision="fp32", trains=False):
    network = build(name, sequence_length=length, vocabulary=vocabulary, hidden=8)
    work = Forward if trains else Infer
    program = build_program(
        BuildRequest(
            network=network,
            work=work(network=name, batch_per_device=2),
            placement=Placement(),
            program=ProgramSettings(precision=precision),
            sync=strategies.make("none"),
            device=device,
            threads=1,
        )
    )
    weights = dict(network.draw(3))
    # larger than at the beginning of a training, so that tokens differ in probability
    program.load({n: 4 * a for n, a in weights.items()})
    return program


def search(width, penalty=0.6):
    return BeamSearch(
        beam_width=width, length_penalty=penalty, begin=BEGIN, end=END, never=(0, BEGIN)
    )


def sources(count, length=6, vocabulary=9):
    return np.random.default_rng(1).integers(4, vocabulary, (count, length))


def scores_of(program, source, target):
    """Log-probabilities (texts, positions, vocabulary), by whole passes."""
    rows = np.repeat(source[None], len(target), 0)
    labels = np.zeros_like(target)
    logits = program.evaluate(program.place(Batch(rows, target, labels=labels))).astype(float)
    logits[..., [0, BEGIN]] = -np.inf
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def greedy_by_whole_passes(program, source, length=6):
    target = np.full((1, length), BEGIN)
    for position in range(length):
        token = int(scores_of(program, source, target)[0, position].argmax())
        if token == END or position == length - 1:
            return target[0, 1 : position + 1].tolist()
        target[0, position + 1] = token
    raise AssertionError


@pytest.mark.parametrize("name", TRANSLATORS)
def test_greedy_search_takes_the_tokens_of_whole_passes(name):
    program = program_of(name, trains=True)
    given = sources(5)
    assert isinstance(program, SupportsTranslation)
    found = program.translate(given, search(1))
    assert found == [greedy_by_whole_passes(program, source) for source in given]
    assert len(set(map(tuple, found))) > 1  # sentences differ
    assert program.module.training  # and trains on
    assert program.translate(given[:0], search(1)) == []


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_wide_beam_finds_the_best_of_all_texts(name, penalty):
    length, vocabulary = 4, 7
    program = program_of(name, length=length, vocabulary=vocabulary)
    given = sources(3, length, vocabulary)
    tokens = [1, 4, 5, 6]
    texts = [t for n in range(length) for t in itertools.product(tokens, repeat=n)]
    targets = np.full((len(texts), length), 0)
    for row, text in enumerate(texts):
        targets[row, : len(text) + 1] = [BEGIN, *text]
    best = []
    for source in given:
        logs = scores_of(program, source, targets)
        values = [
            sum(logs[row, i, token] for i, token in enumerate([*text, END]))
            / ((5 + len(text) + 1) / 6) ** penalty
            for row, text in enumerate(texts)
        ]
        best.append(list(texts[int(np.argmax(values))]))
    # as many hypotheses as there are beginnings, so none is lost
    assert program.translate(given, search(64, penalty)) == best


def test_a_beam_of_some_hypotheses_is_at_least_as_probable_as_greedy_search():
    program = program_of("translator", length=8, vocabulary=30)
    given = sources(6, 8, 30)

    def probability(source, text):
        target = np.full((1, 8), 0)
        target[0, : len(text) + 1] = [BEGIN, *text]
        logs = scores_of(program, source, target)[0]
        return sum(logs[i, token] for i, token in enumerate([*text, END]))

    greedy, beam = (program.translate(given, search(width, 0.0)) for width in (1, 4))
    gains = [
        probability(s, b) - probability(s, g) for s, b, g in zip(given, beam, greedy, strict=True)
    ]
    assert sum(gains) >= -1e-4
    assert all(math.isfinite(gain) for gain in gains)
    # each sentence is translated as it would be alone
    assert [program.translate(given[i : i + 1], search(4, 0.0))[0] for i in range(6)] == beam


def test_16_bits_translate_too():
    found = program_of("translator-2x", precision="bf16", trains=True).translate(
        sources(3), search(3)
    )
    assert len(found) == 3
    assert all(0 <= len(text) < 6 for text in found)


def test_other_networks_do_not_translate():
    network = build("little-cnn", image_size=8)
    program = build_program(
        BuildRequest(
            network=network,
            work=Infer(network="little-cnn", batch_per_device=2),
            placement=Placement(),
            program=ProgramSettings(),
            sync=strategies.make("none"),
            device="cpu",
            threads=1,
        )
    )
    with pytest.raises(Unsupported, match="translator-2x"):
        program.translate(sources(1), search(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_gpu_translates_as_the_cpu_does(name):
    given = sources(5)
    for width in (1, 4):
        found = program_of(name, device="cuda:0").translate(given, search(width))
        assert found == program_of(name).translate(given, search(width))
