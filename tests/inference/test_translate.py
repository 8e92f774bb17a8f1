"""Sentence pairs to translations: training with sub-words, BLEU, checkpoints, `infer --text`."""

import json
import math
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import cubemesh
from cubemesh.cli import app
from cubemesh.data.text.vocabulary import FILE, load_vocabulary
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema import CheckpointSettings, ProgramSettings, RunSpec, Train
from cubemesh.training.manifest import MANIFEST
from cubemesh.worker.report.events import EventLog, events_path, read_events
from cubemesh.worker.run.task import Task
from cubemesh.worker.run.work_kinds import TASKS

SENTENCES = [
    (f"der {a} {n} {v} .", f"the {b} {m} {w} .")
    for a, b in (("alte", "old"), ("neue", "new"), ("rote", "red"))
    for n, m in (("Hund", "dog"), ("Mann", "man"), ("Vogel", "bird"))
    for v, w in (("singt", "sings"), ("sieht", "sees"), ("malt", "paints"), ("ruft", "calls"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("translator")
    lines = "".join(f"{german}\t{english}\n" for german, english in SENTENCES)
    (place / "pairs.tsv").write_text(lines, encoding="utf-8")
    return place


def spec_of(folder, *, checkpoints="ck", resume=False, **work):
    settings = {
        "data": "parallel-text",
        "data_path": str(folder / "pairs.tsv"),
        "tokenizer": "bpe",
        "epochs": 2,
        "beam_width": 2,
        **work,
    }
    sizes = {"sequence_length": 16, "vocabulary": 60, "hidden": 8}
    place = None if checkpoints is None else str(folder / checkpoints)
    return RunSpec(
        work=Train(network="translator", batch_per_device=8, optimizer="adam", **sizes, **settings),
        program=ProgramSettings(framework="pytorch"),
        checkpointing=CheckpointSettings(
            checkpoints=place, every_steps=None if place is None else 2, resume=resume
        ),
    )


def train(folder, spec, framework="pytorch"):
    """Figures and curves of a training in this process."""
    run = Path(tempfile.mkdtemp(dir=folder))
    log = EventLog(events_path(run, 0), 0, time.perf_counter())
    task = Task(
        spec=spec,
        framework=entry(framework).load(),
        device="cpu",
        threads=1,
        usable_cores=1,
        log=log,
    )
    try:
        TASKS["train"](task)
    finally:
        log.close()
    events = read_events(events_path(run, 0))
    figures = {e["name"]: e["figure"] for e in events if e["event"] == "figure"}
    curves = {e["curve"]["name"]: e["curve"] for e in events if e["event"] == "curve"}
    return figures, curves


@pytest.fixture(scope="module")
def trained(folder):
    return train(folder, spec_of(folder))


def test_a_training_reports_bleu_perplexity_and_the_time_of_an_epoch(trained):
    figures, curves = trained
    value = {name: figure["value"] for name, figure in figures.items()}
    assert 0 <= value["bleu"] <= 100
    assert value["perplexity"] == pytest.approx(math.exp(value["validation_loss"]))
    assert value["translated_per_s"] > 0
    assert figures["translated_per_s"]["n"] == 3  # every tenth of 36
    # 4 of 33 sentences are left out of an epoch of full batches
    rate = value["tokens_per_s"] * value["epoch_s"] / 32
    assert 7 <= rate <= 15  # tokens of a sentence
    for name in ("bleu", "perplexity"):
        assert list(curves[name]["x"]) == [1, 2]
    assert curves["bleu"]["y"][-1] == value["bleu"]


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
    greedy = cubemesh.translate_texts(
        folder / "ck", ["der alte Hund singt ."], beam_width=1, step=6
    )
    assert greedy.weights == "checkpoint after step 6"


def cli(*words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "100"})


def test_the_command_translates_and_ends_with_1_where_nothing_was(folder, trained):
    run = cli(
        "infer", str(folder / "ck"), "--text", "der alte Hund singt .", "--text", "", "--json"
    )
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
    _, curves = train(folder, spec_of(folder, epochs=3, resume=True))
    assert list(curves["bleu"]["x"]) == [1, 2, 3]
    assert (folder / "ck" / FILE).read_bytes() == before
    text = (folder / "pairs.tsv").read_text()
    (folder / "pairs.tsv").write_text(text.replace("Vogel", "Kran"))
    begun = (folder / "ck" / MANIFEST).read_text()
    try:
        with pytest.raises(UsageError, match=r"pairs\.tsv have changed"):
            train(folder, spec_of(folder, epochs=4, resume=True))
        manifest = json.loads(begun)
        del manifest["data_digest"]
        (folder / "ck" / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(UsageError, match="the text has changed"):
            train(folder, spec_of(folder, epochs=4, resume=True))
    finally:
        (folder / "pairs.tsv").write_text(text)
        (folder / "ck" / MANIFEST).write_text(begun)


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
    ("settings", "framework", "words"),
    [
        ({"data": "synthetic", "data_path": None}, "pytorch", "no sentence pairs"),
        ({}, "null", "does not translate"),
    ],
)
def test_beam_width_needs_sentence_pairs_and_a_framework(folder, settings, framework, words):
    with pytest.raises(Unsupported, match=words):
        train(folder, spec_of(folder, checkpoints=None, **settings), framework)
