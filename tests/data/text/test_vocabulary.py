"""Vocabularies of words and sub-words: what is learned, how texts are divided, the file."""

import json

import pytest

from cubemesh.data.text import generated_sentences
from cubemesh.data.text.vocabulary import (
    BEGIN,
    END,
    FILE,
    PAD,
    SPECIAL,
    UNKNOWN,
    divide,
    learn_vocabulary,
    load_vocabulary,
)
from cubemesh.errors import DataError

# low 5, lower 2, newest 6, widest 3: the example of Sennrich, Haddow and Birch.
TEXTS = [["low"] * 5, ["lower"] * 2, ["newest"] * 6, ["widest"] * 3]


def test_merges_are_those_of_the_example_by_frequency():
    learned = learn_vocabulary(TEXTS, 100, "bpe")
    # es and st of newest and widest occur 9 times, es first by the alphabet; lo 7 times.
    assert learned.merges[:4] == (("e", "s"), ("es", "t "), ("l", "o"), ("e", "w"))
    assert learned.tokens[: len(SPECIAL)] == SPECIAL
    # every character and, as one, the last one of a word; the most frequent first
    assert learned.tokens[4] == "e"
    assert {"w ", "w", "r ", "t "} <= learned.ids.keys()
    assert learned.tokens[-1] in {"lower ", "widest "}


def test_the_vocabulary_is_full_and_no_pair_is_merged_that_occurs_once():
    full = learn_vocabulary(TEXTS, 20, "bpe")
    assert len(full.tokens) == 20
    assert full.tokens == learn_vocabulary(reversed(TEXTS), 20, "bpe").tokens
    once = learn_vocabulary([["abc"]], 100, "bpe")
    assert once.merges == ()
    assert once.tokens[4:] == ("a", "b", "c ")


def test_a_word_is_divided_by_the_merges_in_their_order():
    ranks = {("e", "s"): 0, ("es", "t "): 1, ("l", "o"): 2}
    assert divide("lowest", ranks) == ["lo", "w", "est "]
    assert divide("eses", {("e", "s"): 0, ("es", "es"): 1}) == ["es", "e", "s "]
    assert divide("a", {}) == ["a "]


def test_sub_words_join_to_the_text_again_also_of_words_never_seen():
    learned = learn_vocabulary((s for p in generated_sentences.words() for s in p), 500, "bpe")
    text = "der Gartenlehrer malt eine Stadtmauer ."
    tokens = learned.encode(text.split())
    assert learned.decode(tokens) == text
    assert learned.decode([BEGIN, *tokens, END, tokens[0], PAD]) == text
    assert len(tokens) < len(text) / 2
    assert UNKNOWN in learned.encode(["漢"])
    assert learned.decode(learned.encode(["漢", "."])) == "<unk> ."


def test_words_are_themselves_or_unknown():
    learned = learn_vocabulary([["b", "a", "b", "<s>", "c"]], 6, "words")
    assert learned.tokens == (*SPECIAL, "b", "a")
    assert learned.decode(learned.encode(["a", "c", "b"])) == "a <unk> b"
    assert learned.decode([99, -1, 5]) == "a"


def test_a_word_beyond_all_measure_is_one_unknown_token():
    learned = learn_vocabulary([["a" * 5000, "ab", "ab"]], 50, "bpe")
    assert learned.encode(["a" * 5000, "ab"]) == [UNKNOWN, learned.ids["ab "]]


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_the_file_gives_the_same_vocabulary(tmp_path, tokenizer):
    learned = learn_vocabulary(TEXTS, 18, tokenizer)
    learned.save(tmp_path)
    assert load_vocabulary(tmp_path) == learned
    assert load_vocabulary(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "vocabulary"),
        ("[]", "no object"),
        (json.dumps({"tokenizer": "x", "tokens": [], "merges": []}), "neither words nor bpe"),
        (json.dumps({"tokenizer": "bpe", "tokens": ["a"], "merges": []}), "do not begin"),
        (json.dumps({"tokenizer": "bpe", "tokens": [*SPECIAL], "merges": [["a"]]}), "no pair"),
        (json.dumps({"tokenizer": "bpe", "tokens": [*SPECIAL, 3], "merges": []}), "list of texts"),
        (json.dumps({"tokens": []}), "tokenizer"),
    ],
)
def test_a_damaged_file_is_refused_with_its_fault(tmp_path, content, words):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DataError, match=words):
        load_vocabulary(tmp_path)
