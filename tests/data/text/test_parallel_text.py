"""Sentences and their translations: the vocabulary, what is left out, what is refused."""

from pathlib import Path

import numpy as np
import pytest

from cubemesh import data
from cubemesh.data.feed import Feed
from cubemesh.data.text.parallel_text import build_vocabulary
from cubemesh.data.text.vocabulary import BEGIN, END, PAD, UNKNOWN
from cubemesh.errors import DataError, UsageError
from cubemesh.networks import build

PAIRS = [
    ("the cat sleeps", "die Katze schläft"),
    ("the dog sleeps", "der Hund schläft"),
    ("the cat", "die Katze"),
]


def folder_of(path: Path, pairs: list[tuple[str, str]]) -> str:
    for place, name in enumerate(("source.txt", "target.txt")):
        lines = "".join(f"{pair[place]}\n" for pair in pairs)
        (path / name).write_text(lines, encoding="utf-8")
    return str(path)


def small(length: int = 6, vocabulary: int = 40):
    return build("translator", sequence_length=length, vocabulary=vocabulary, hidden=4)


def opened(path: str, split="train", **sizes):
    return data.open_for(small(**sizes), "parallel-text", path, split, seed=0)


def test_a_folder_and_a_file_with_tabs_are_the_same_text(tmp_path):
    folder = folder_of(tmp_path, PAIRS)
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{s}\t{t}\tby someone\n" for s, t in PAIRS), encoding="utf-8")
    one, other = (opened(path).batch(np.arange(3)) for path in (folder, str(file)))
    for a, b in zip(one.inputs, other.inputs, strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(one.labels, other.labels)


def test_markers_padding_and_what_is_judged(tmp_path):
    path = folder_of(tmp_path, PAIRS)
    words = build_vocabulary(tmp_path, 40).ids
    source = opened(path)
    assert (source.name, source.samples, source.classes) == ("parallel-text", 3, 40)
    batch = source.batch(np.array([2]))
    given, target = batch.inputs
    assert given[0].tolist() == [words["the"], words["cat"], END, PAD, PAD, PAD]
    assert target[0].tolist() == [BEGIN, words["die"], words["Katze"], PAD, PAD, PAD]
    assert batch.labels[0].tolist() == [words["die"], words["Katze"], END, -1, -1, -1]
    assert source.tokens_per_sample == pytest.approx((4 + 4 + 3) / 3)


def test_the_most_frequent_words_and_ties_by_the_alphabet(tmp_path):
    path = folder_of(tmp_path, PAIRS)
    words = build_vocabulary(tmp_path, 7).ids
    assert words == {"the": 4, "Katze": 5, "cat": 6}
    batch = opened(path, vocabulary=7).batch(np.array([1]))
    assert batch.inputs[0][0].tolist() == [4, UNKNOWN, UNKNOWN, END, PAD, PAD]
    assert batch.labels.max() < 7


def test_a_word_that_spells_a_marker_is_none(tmp_path):
    folder_of(tmp_path, [("<s> a </s>", "<unk> <pad> b")])
    assert set(build_vocabulary(tmp_path, 40).ids) == {"a", "b"}


def test_long_and_empty_sentences_are_left_out(tmp_path):
    path = folder_of(tmp_path, [*PAIRS, ("a b c d e f", "a"), ("a", "b c d e f g"), ("a", " ")])
    assert opened(path).samples == 3
    assert opened(path, length=7).samples == 5
    with pytest.raises(DataError, match=r"\b6 .*\b1 to 1\b"):
        opened(path, length=2)


def test_every_tenth_pair_validates_and_lends_no_word(tmp_path):
    pairs = [(f"s{i}", f"t{i}") for i in range(1, 26)]
    path = folder_of(tmp_path, pairs)
    assert opened(path, vocabulary=100).samples == 23
    held = opened(path, split="validation", vocabulary=100)
    assert held.samples == 2
    assert held.batch(np.arange(2)).labels[:, 0].tolist() == [UNKNOWN, UNKNOWN]
    with pytest.raises(DataError, match="Every 10th pair"):
        opened(folder_of(tmp_path, PAIRS), split="validation")


def test_it_feeds_minibatches(tmp_path):
    path = folder_of(tmp_path, PAIRS * 4)
    batch = next(Feed(opened(path), 8, 0))
    assert [a.shape for a in batch.inputs] == [(8, 6), (8, 6)]
    assert batch.labels.shape == (8, 6)


def test_windows_line_ends_and_no_last_newline(tmp_path):
    (tmp_path / "source.txt").write_bytes(b"\xef\xbb\xbfa b\r\nc")
    (tmp_path / "target.txt").write_bytes(b"x\r\ny z\r\n")
    assert opened(str(tmp_path)).samples == 2
    assert set(build_vocabulary(tmp_path, 40).ids) == set("abcxyz")


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"nowhere .*source\.txt"):
        data.check("parallel-text", str(tmp_path / "nowhere"))
    (tmp_path / "source.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"needs .*target\.txt"):
        data.check("parallel-text", str(tmp_path))
    with pytest.raises(UsageError, match="data_path is not set"):
        data.check("parallel-text")


def test_unequal_and_empty_files(tmp_path):
    (tmp_path / "source.txt").write_text("a\nb\nc")
    (tmp_path / "target.txt").write_text("x\ny\n")
    with pytest.raises(DataError, match=r"source\.txt .*\b3 .*target\.txt 2\b"):
        data.check("parallel-text", str(tmp_path))
    (tmp_path / "target.txt").write_text("")
    with pytest.raises(DataError, match=r"target\.txt .*\bempty\b"):
        data.check("parallel-text", str(tmp_path))
    with pytest.raises(DataError, match="No pair of 2"):
        opened(folder_of(tmp_path, [("", ""), (" ", " ")]))


def test_text_of_another_kind(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("a\tb\n\nno tab here\n")
    with pytest.raises(DataError, match=r"\b3 .*pairs\.tsv .*\btab\b"):
        opened(str(file))
    file.write_text("a sentence\n")
    with pytest.raises(DataError, match=r"\b1 .*pairs\.tsv .*\btab\b"):
        data.check("parallel-text", str(file))
    file.write_bytes("schläft\tb\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"pairs\.tsv.*\bUTF-8"):
        opened(str(file))


def test_networks_that_are_fed_something_else(tmp_path):
    path = folder_of(tmp_path, PAIRS)
    with pytest.raises(UsageError, match=r"data=parallel-text .*little-cnn .*\bdigits\b"):
        data.open_for(build("little-cnn"), "parallel-text", path, "train", seed=0)
    with pytest.raises(UsageError, match=r"data=parallel-text .*\bgpt2 .*network=translator\b"):
        data.check_feeds("parallel-text", build("gpt2"))
    with pytest.raises(UsageError, match="vocabulary=4 "):
        opened(path, vocabulary=4)
