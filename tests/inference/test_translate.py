"""From sentence pairs to translations: training with sub-words, BLEU, checkpoints, `infer --text`."""

import json
import math
import shutil

import pytest

from typer.testing import CliRunner

pytest.importorskip("torch")

import cubemesh
from cubemesh.cli import app
from cubemesh.data.text.vocabulary import FILE, load_vocabulary
from cubemesh.errors import DataError, UsageError
from cubemesh.schema import Status

SENTENCES = [
    (f"der {a} {n} {v} .", f"the {b} {m} {w} .")
    for a, b in (("alte", "old"), ("neue", "new"), ("rote", "red"))
    for n, m in (("Hund", "dog"), ("Mann", "man"), ("Vogel", "bird"))
    for v, w in (("singt", "sings"), ("sieht", "sees"), ("malt", "paints"), ("ruft", "calls"))
]


@pytest.fixture(scope="module")
def own_locks(tmp_path_factory):
    """A cache folder, and so device locks, of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, own_locks):
    place = tmp_path_factory.mktemp("translator")
    lines = "".join(f"{german}\t{english}\n" for german, english in SENTENCES)
    (place / "pairs.tsv").write_text(lines, encoding="utf-8")
    return place


def train(folder, **more):
    settings = {
        "data": "parallel-text",
        "data_path": str(folder / "pairs.tsv"),
        "tokenizer": "bpe",
        "checkpoints": str(folder / "ck"),
        "epochs": "2",
        "batch_per_device": "8",
        "sequence_length": "16",
        "vocabulary": "60",
        "hidden": "8",
        "optimizer": "adam",
        "beam_width": "2",
        "framework": "pytorch",
        "device": "cpu",
        "threads": "1",
        **more,
    }
    result = cubemesh.train("translator", settings=settings, store=str(folder / "s.sqlite"))
    return result.answer, result.records[-1]


@pytest.fixture(scope="module")
def trained(folder):
    return train(folder)


def test_a_training_reports_bleu_perplexity_and_the_time_of_an_epoch(trained):
    answer, record = trained
    assert record.outcome.status is Status.OK, record.outcome.message
    figures = {name: record.figure(name) for name in record.figures}
    assert 0 <= figures["bleu"] <= 100
    assert figures["perplexity"] == pytest.approx(math.exp(figures["validation_loss"]))
    assert figures["translated_per_s"] > 0
    assert record.figures["translated_per_s"].n == 3
    assert figures["tokens_per_s"] > 0
    assert figures["epoch_s"] > 0
    for name in ("bleu", "perplexity"):
        assert record.curve(name).x == (1.0, 2.0)
    codes = {finding.code for finding in answer.findings}
    assert {"bleu", "epoch-time"} <= codes
    (epochs,) = (table for table in answer.tables if table.title == "Epochs")
    assert {"perplexity", "BLEU"} <= {column.name for column in epochs.columns}
    assert "train-translator-bleu" in {chart.name for chart in answer.charts}


def test_texts_are_translated_and_hostile_ones_get_a_sentence(folder, trained):
    hostile = ["", " \t\n", "a\x00b", "\x1b[31m rot", "x" * (1 << 21), "\udcff", "Hund " * 400]
    found = cubemesh.translate_texts(
        folder / "ck", ["der alte Hund singt .", *hostile, "der 漢 ruft ."], beam_width=3
    )
    assert (found.network, found.device, found.beam_width) == ("translator", "cpu", 3)
    first, *refused, last = found.texts
    assert (first.reason, first.unknown) == ("", 0)
    words = ["no words", "no words", "U+0000", "U+001B", "2,097,152", "UTF-8", "at most 15"]
    for one, expected in zip(refused, words, strict=True):
        assert expected in one.reason
        assert one.translation == ""
    assert (last.reason, last.unknown) == ("", 1)
    greedy = cubemesh.translate_texts(folder / "ck", ["der alte Hund singt ."], beam_width=1, step=1)
    assert greedy.weights == "checkpoint after step 1"


def cli(*words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "100"})


def test_the_command_translates_and_ends_with_1_where_nothing_was(folder, trained):
    run = cli("infer", str(folder / "ck"), "--text", "der alte Hund singt .", "--text", "", "--json")
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    assert document["kind"] == "translation"
    assert [bool(one["reason"]) for one in document["texts"]] == [False, True]
    shown = cli("infer", str(folder / "ck"), "--text", "\x07", "--beam-width", "1")
    assert shown.exit_code == 1
    assert "U+0007" in shown.stdout
    assert "greedy search" in shown.stdout
    for options, words in (
        (("--text", "a", "--top", "3"), "--top"),
        (("--beam-width", "2"), "--text"),
        (("--text", "a", "--beam-width", "5000"), "1000"),
        (("--text", "a", "--device", "cuda:7"), "cuda:7"),
    ):
        refused = cli("infer", str(folder / "ck"), *options)
        assert isinstance(refused.exception, UsageError), refused.output
        assert words in str(refused.exception)


def test_a_training_resumes_with_its_vocabulary_and_not_with_another_text(folder, trained):
    before = (folder / "ck" / FILE).read_bytes()
    assert load_vocabulary(folder / "ck").tokenizer == "bpe"
    _, record = train(folder, epochs="3", resume="true")
    assert record.outcome.status is Status.OK, record.outcome.message
    assert record.curve("bleu").x == (1.0, 2.0, 3.0)
    assert (folder / "ck" / FILE).read_bytes() == before
    text = (folder / "pairs.tsv").read_text()
    (folder / "pairs.tsv").write_text(text.replace("Vogel", "Kran"))
    _, record = train(folder, epochs="4", resume="true")
    (folder / "pairs.tsv").write_text(text)
    assert record.outcome.status is not Status.OK
    assert "the text has changed" in record.outcome.message


def test_what_does_not_translate_says_why(folder, trained, tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        cubemesh.translate_texts(tmp_path / "x.plan", ["a"])
    with pytest.raises(UsageError, match="in a list"):
        cubemesh.translate_texts(folder / "ck", "a")
    with pytest.raises(UsageError, match="length_penalty"):
        cubemesh.translate_texts(folder / "ck", ["a"], length_penalty=-1)
    copy = shutil.copytree(folder / "ck", tmp_path / "ck")
    (copy / FILE).write_text('{"tokenizer": "bpe"}')
    with pytest.raises(DataError, match="vocabulary"):
        cubemesh.translate_texts(copy, ["a"])
    (copy / FILE).unlink()
    with pytest.raises(UsageError, match="without a vocabulary"):
        cubemesh.translate_texts(copy, ["a"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": "synthetic", "data_path": "none"}, "no sentence pairs"),
        ({"framework": "null"}, "does not translate"),
    ],
)
def test_beam_width_needs_sentence_pairs_and_a_framework_that_translates(folder, settings, words):
    _, record = train(folder, checkpoints="none", **settings)
    assert record.outcome.status is Status.UNSUPPORTED
    assert words in record.outcome.message
