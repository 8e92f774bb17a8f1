"""Documents in padded and in packed rows."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh import data, networks
from cubemesh.batches import PADDING
from cubemesh.data.text import documents
from cubemesh.data.text.documents import open_documents, open_generated, pack
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.assembly import of_documents

LENGTH = 8


def gpt(length=LENGTH, vocabulary=50):
    return networks.build("gpt2", sequence_length=length, vocabulary=vocabulary)


@pytest.fixture
def file(tmp_path):
    """Lines 10 and 20 are for validation."""
    path = tmp_path / "documents.txt"
    lines = ["1 2 3", "4", "", "5 6 7 8 9 10 11 12 13 14 15", "16 17", *["20 21"] * 4, "40 41 42"]
    path.write_text("\n".join([*lines, "18 19 20 21"]))
    return path


def rows(source):
    return source.batch(np.arange(source.samples))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_every_piece_is_packed_once_and_fits(lengths):
    found = pack(lengths, 20)
    assert sorted(n for row in found for n in row) == list(range(len(lengths)))
    used = [sum(lengths[n] for n in row) for row in found]
    assert max(used) <= 20
    assert sum(u <= 10 for u in used) <= 1  # two of these would have been one row


def test_padded_rows_have_a_piece_each(file):
    batch = rows(open_documents(file, "train", gpt()))
    tokens, labels = batch.inputs[0].tolist(), batch.labels.tolist()
    assert tokens[0] == [1, 2, 3, 0, 0, 0, 0, 0]
    assert labels[0] == [2, 3, *[PADDING] * 6]
    assert tokens[1:3] == [[5, 6, 7, 8, 9, 10, 11, 12], [13, 14, 15, 0, 0, 0, 0, 0]]
    assert labels[1:3] == [[6, 7, 8, 9, 10, 11, 12, 13], [14, 15, *[PADDING] * 6]]
    assert len(tokens) == 9  # documents without a label are left out
    assert rows(open_documents(file, "validation", gpt())).inputs[0][:, :3].tolist() == [
        [40, 41, 42]
    ]


def test_packed_rows_have_the_same_pieces_and_their_places(file):
    padded = open_documents(file, "train", gpt())
    packed = open_documents(file, "train", of_documents(gpt()))
    assert packed.samples < padded.samples
    assert packed.padding < padded.padding == pytest.approx(1 - 28 / 72)
    assert packed.tokens_per_sample * packed.samples == padded.tokens_per_sample * padded.samples

    def pieces(source):
        batch = rows(source)
        places = batch.inputs[1] if len(batch.inputs) > 1 else None
        found = []
        for row, (tokens, labels) in enumerate(zip(batch.inputs[0], batch.labels, strict=True)):
            of_row = np.arange(LENGTH) if places is None else places[row]
            for part in np.split(np.arange(LENGTH), np.flatnonzero(of_row == 0)[1:]):
                assert of_row[part].tolist() == list(range(len(part)))
                counted = labels[part] != PADDING
                if counted.any():
                    found.append((*tokens[part][counted], *labels[part][counted]))
        return sorted(found)

    assert pieces(packed) == pieces(padded)


def test_generated_documents_are_the_same_for_a_seed_and_fill_a_batch():
    network = of_documents(gpt(32))
    one, same, other = (open_generated("train", network, seed, 8) for seed in (1, 1, 2))
    assert np.array_equal(rows(one).labels, rows(same).labels)
    assert not np.array_equal(rows(one).labels[:5], rows(other).labels[:5])
    assert one.padding < 0.05 < 0.4 < open_generated("train", gpt(32), 1, 8).padding
    assert open_generated("validation", network, 1, 500).samples >= 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n1 x\n", r"line 2: .*x.* not the number of a token"),
        ("1 -2\n", r"line 1: .*-2"),
        ("1 2\n3 50\n", r"line 2 has token 50, .* 50 tokens.*vocabulary=51"),
        ("1\n\n", "no document for train"),
        ("", "no document for train"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "documents.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        open_documents(path, "train", gpt())


def test_a_file_that_is_no_text_or_missing(tmp_path):
    path = tmp_path / "documents.bin"
    path.write_bytes(b"\xff\xfe\x00")
    for wrong, message in ((path, "is no text"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(DataError, match=message):
            data.check("documents", str(wrong))


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(DataError, match="is not a file"):
            data.check("documents", str(path))


@pytest.mark.parametrize(
    ("network", "rows", "remedy"),
    [(gpt(), 9, "Set packing=documents, or divide"), (of_documents(gpt()), 4, "memory. Divide")],
)
def test_rows_that_take_too_much_memory_are_refused(file, monkeypatch, network, rows, remedy):
    monkeypatch.setattr(documents, "MOST_BYTES", 3 * 8 * 8 * rows)
    open_documents(file, "train", network)
    monkeypatch.setattr(documents, "MOST_BYTES", 3 * 8 * 8 * rows - 1)
    with pytest.raises(DataError, match=f"{rows} rows of 8 tokens .*{remedy}"):
        open_documents(file, "train", network)


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        ("synthetic", of_documents(gpt()), "data=synthetic has no documents.*generated-documents"),
        ("documents", networks.build("translator"), "does not predict a token"),
        ("generated-documents", networks.build("resnet-18"), "does not predict a token"),
    ],
)
def test_data_and_network_must_fit(name, network, message):
    with pytest.raises(UsageError, match=message):
        data.check_feeds(name, network)
