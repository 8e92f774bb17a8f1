"""Sequences of tokens: what is drawn, and how it is handed out."""

import numpy as np
import pytest

from cubemesh import data
from cubemesh.data.feed import Feed
from cubemesh.data.text.sequences import Sequences
from cubemesh.errors import UsageError
from cubemesh.networks import build
from cubemesh.networks.zoo.gpt2 import gpt

SMALL = gpt("small-gpt", 12, 20, width=6, depth=1, heads=1)


def test_each_position_is_judged_by_the_token_that_follows():
    source = data.open_for(SMALL, "synthetic", None, "train", seed=3, samples_needed=8)
    assert (source.samples, source.classes) == (1024, 20)
    batch = next(Feed(source, 8, 0))
    (tokens,) = batch.inputs
    assert tokens.shape == batch.labels.shape == (8, 12)
    assert np.array_equal(tokens[:, 1:], batch.labels[:, :-1])
    assert 0 <= tokens.min() <= tokens.max() < 20
    assert len(np.unique(tokens)) == 20


def test_the_seed_and_the_split_decide_what_is_drawn():
    def first(split, seed):
        source = data.open_for(SMALL, "synthetic", None, split, seed=seed)
        return source.batch(np.array([0])).inputs[0].tolist()

    assert first("train", 1) == first("train", 1)
    assert first("train", 1) != first("train", 2)
    assert first("train", 1) != first("validation", 1)


def test_padding_is_no_token():
    labels = np.array([[1, 2, -1], [3, -1, -1]])
    source = Sequences("some", (np.zeros((2, 3), np.int64),), labels, 5)
    assert source.tokens_per_sample == 1.5


def test_images_for_a_network_of_tokens_are_refused():
    with pytest.raises(UsageError, match=r"data=digits .*small-gpt"):
        data.open_for(SMALL, "digits", None, "train", seed=0)


def test_a_network_of_images_is_fed_images():
    network = build("little-cnn")
    source = data.open_for(network, "synthetic", None, "train", seed=0)
    assert source.batch(np.array([0])).images.shape == (1, 3, 32, 32)


def test_a_translator_is_fed_sentences_of_one_bucket():
    network = build("translator", sequence_length=10, vocabulary=50, hidden=4)
    source = data.open_for(network, "synthetic", None, "train", seed=0)
    batch = source.batch(np.arange(200))
    given, target = batch.inputs
    lengths = (batch.labels >= 0).sum(axis=1)
    assert set(lengths) == {6, 7, 8, 9, 10}
    for tokens, labels, length in zip(target, batch.labels, lengths, strict=True):
        assert (labels[length:] == -1).all()
        assert (tokens[length:] == 0).all()
        assert np.array_equal(tokens[1:length], labels[: length - 1])
    assert given.max() < 50
    assert 7.5 < source.tokens_per_sample < 8.5


def test_a_network_of_speech_is_fed_spectrograms():
    network = build("deep-speech-gru", sequence_length=9, hidden=4)
    source = data.open_for(network, "synthetic", None, "train", seed=0, samples_needed=4)
    batch = source.batch(np.arange(4))
    (spectrogram,) = batch.inputs
    assert (spectrogram.dtype, spectrogram.shape) == (np.float32, (4, 1, 161, 9))
    assert 0 <= spectrogram.min() < spectrogram.max() < 1
    assert batch.labels.shape == (4, 5)  # every second frame
    assert 0 <= batch.labels.min() <= batch.labels.max() < 29
    for name in ("digits", "parallel-text"):
        with pytest.raises(UsageError, match=f"data={name} .*deep-speech-gru"):
            data.check_feeds(name, network)


def test_a_captioner_is_fed_images_and_sentences():
    network = build("captioner", 11, sequence_length=6, vocabulary=50, hidden=4)
    source = data.open_for(network, "synthetic", None, "train", seed=0)
    batch = source.batch(np.arange(20))
    image, tokens = batch.inputs
    assert (image.dtype, image.shape) == (np.float32, (20, 3, 11, 11))
    assert np.array_equal(tokens[:, 1:], batch.labels[:, :-1])
    assert tokens.max() < 50
    with pytest.raises(UsageError, match=r"data=parallel-text has sentences, .* 'image'"):
        data.check_feeds("parallel-text", network)
