"""The generated German–English sentences: the same everywhere, and correct in gender and case."""

import hashlib

import numpy as np
import pytest

from cubemesh import data
from cubemesh.data.text import generated_sentences
from cubemesh.data.text.vocabulary import END
from cubemesh.errors import UsageError
from cubemesh.networks import build

DIGEST = "c9eedd980d2d61bc"


def test_pairs_are_different_and_the_same_on_every_machine():
    pairs = generated_sentences.pairs()
    assert len(pairs) == generated_sentences.PAIRS == 6000
    assert len({german for german, _ in pairs}) == 6000
    digest = hashlib.sha256("\n".join(map("\t".join, pairs)).encode()).hexdigest()
    assert digest.startswith(DIGEST)


def test_gender_case_and_the_place_of_the_verb():
    text = dict(generated_sentences.pairs())
    found = " | ".join(text)
    for right in (
        *("einen alten Vogel", "den alten Vogel", "ein altes Bild", "das alte Bild"),
        *("eine alte Haus", "der alte Mann", "ein alter Mann"),
    ):
        assert right in found
    for wrong in ("eine altes", "den Katze", "der Katze", "das Katze", "einen Katze"):
        assert wrong not in found
    finite = {"sieht", "kauft", "findet", "malt", "sucht", "zeigt", "vergisst", "beschreibt"}
    clauses = [german.split() for german in text if " dass " in german]
    assert len(clauses) > 1000
    assert {words[-2] for words in clauses} == finite
    assert all(" that " in text[" ".join(words)] for words in clauses)
    assert {sentence[-2:] for pair in text.items() for sentence in pair} == {" ."}


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_they_are_opened_for_a_translator(tokenizer):
    network = build("translator", sequence_length=40, vocabulary=400, hidden=4)
    opened = [
        data.open_for(network, "generated-sentences", None, split, seed=0, tokenizer=tokenizer)
        for split in ("train", "validation")
    ]
    train, validation = opened
    assert (train.samples, validation.samples, train.classes) == (5400, 600, 400)
    assert train.vocabulary == validation.vocabulary
    # every tenth pair is for validation
    indices = np.array([0, 599])
    assert validation.references(indices) == [
        generated_sentences.pairs()[9][1],
        generated_sentences.pairs()[5999][1],
    ]
    source, target = validation.batch(indices).inputs
    german = validation.vocabulary.decode(source[0])
    assert german == generated_sentences.pairs()[9][0]
    assert END in source[1]
    assert validation.vocabulary.decode(target[1, 1:]) == generated_sentences.pairs()[5999][1]


def test_other_networks_are_refused():
    with pytest.raises(UsageError, match="translator"):
        data.open_for(build("gpt2", vocabulary=50), "generated-sentences", None, "train", seed=0)
    with pytest.raises(UsageError, match="no path"):
        data.check("generated-sentences", "here")
