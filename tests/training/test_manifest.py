"""A checkpoint folder belongs to one training; on other devices it continues only where its steps
stay the same."""

import dataclasses
import json
import os

import numpy as np
import pytest

from cubemesh.errors import BusyError, DataError, UsageError
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.schema import CheckpointSettings, Placement, ProgramSettings, RunSpec, Train
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.training.checkpoint import Checkpoint, save
from cubemesh.training.manifest import MANIFEST, check, claim


def asked(folder, resume=True, reshard=False, devices=1, work=None, program=None):
    return RunSpec(
        work=Train(**{"network": "little-cnn", "batch_per_device": 64, **(work or {})}),
        placement=Placement(devices=devices),
        program=ProgramSettings(**program or {}),
        checkpointing=CheckpointSettings(checkpoints=str(folder), resume=resume, reshard=reshard),
    )


def train(folder, **given):
    """Begin a training and write a checkpoint."""
    folder.mkdir(exist_ok=True)
    claimed = claim(folder, asked(folder, resume=False, **given))
    checkpoint(folder, claimed.manifest.training)
    claimed.close()
    return claimed.manifest


def checkpoint(folder, training="", step=5):
    snapshot = Snapshot(weights={"w": np.zeros(2, np.float32)})
    save(folder, 0, 1, Checkpoint(step=step, snapshot=snapshot, training=training))


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"devices": 2, "program": {"sync": "all-reduce"}}, ["devices=1", "devices=2", "sync="]),
        ({"work": {"network": "lenet-5"}}, ["network=little-cnn", "network=lenet-5"]),
        ({"work": {"data": "digits"}}, ["data=synthetic", "data=digits"]),
        ({"work": {"seed": 3}}, ["seed=0", "seed=3"]),
        ({"work": {"batch_per_device": 32}}, ["batch_per_device=32"]),
        ({"work": {"accumulation_steps": 2}}, ["accumulation_steps=2"]),
        ({"work": {"optimizer": "adam"}}, ["optimizer=adam"]),
        ({"work": {"momentum": 0.5}}, ["momentum=0.5"]),
        ({"work": {"weight_decay": 0.1}}, ["weight_decay=0.1"]),
        ({"program": {"precision": "bf16"}}, ["precision=bf16"]),
        ({"program": {"framework": "jax"}}, ["framework=pytorch", "framework=jax"]),
        ({"program": {"deterministic": True}}, ["deterministic=True"]),
    ],
)
def test_another_training_is_refused_and_what_differs_is_named(tmp_path, other, names):
    train(tmp_path)
    before = content(tmp_path)
    for attempt in (check, lambda spec: claim(tmp_path, spec)):
        with pytest.raises(UsageError) as caught:
            attempt(asked(tmp_path, **other))
        for name in names:
            assert name in str(caught.value)
    assert content(tmp_path) == before


def test_the_same_training_resumes_with_another_length_and_rate(tmp_path):
    begun = train(tmp_path)
    longer = asked(tmp_path, work={"epochs": 9, "learning_rate": 0.5, "schedule": "cosine"})
    check(longer)
    resumed = claim(tmp_path, longer)
    assert resumed.manifest == begun
    with pytest.raises(BusyError):
        check(longer)
    resumed.close()


def test_checkpoints_are_refused_without_resume_and_without_a_manifest(tmp_path):
    train(tmp_path)
    with pytest.raises(UsageError, match=r"step 5.*--resume"):
        check(asked(tmp_path, resume=False))
    (tmp_path / MANIFEST).unlink()
    before = content(tmp_path)
    for resume in (True, False):
        with pytest.raises(UsageError, match=MANIFEST):
            check(asked(tmp_path, resume=resume))
    assert content(tmp_path) == before


def test_any_training_may_begin_where_there_is_no_checkpoint(tmp_path):
    first = claim(tmp_path, asked(tmp_path, resume=False))
    first.close()
    second = claim(tmp_path, asked(tmp_path, resume=False, work={"seed": 1}))
    assert second.manifest.training != first.manifest.training
    assert second.manifest.settings["seed"] == 1
    second.close()
    check(asked(tmp_path / "a folder that only other hosts have"))


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, '{"settings": 7}', "\udcff"])
def test_a_damaged_manifest_is_an_error_not_a_new_training(tmp_path, text):
    train(tmp_path)
    (tmp_path / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=MANIFEST):
        check(asked(tmp_path))


def own(graph="{}", digest="a1"):
    """A training of an own network with this source."""
    named = OwnNetwork(source="/x/model.py:Net", folder="/x", digest=digest, graph=graph)
    return {"network": "model.py:Net", "own_network": named}


@pytest.mark.parametrize(
    ("before", "now"), [({}, {"digest": "b2"}), ({"digest": ""}, {"digest": "", "graph": "{1}"})]
)
def test_changed_code_of_an_own_network_is_another_training(tmp_path, before, now):
    train(tmp_path, work=own(**before))
    check(asked(tmp_path, work=own(**before)))
    with pytest.raises(UsageError, match="own_network="):
        check(asked(tmp_path, work=own(**now)))


def test_an_own_network_without_a_digest_in_the_manifest_gets_one(tmp_path):
    train(tmp_path, work=own())
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    del manifest["settings"]["own_network"]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    claimed = claim(tmp_path, asked(tmp_path, work=own()))
    claimed.adopt(asked(tmp_path, work=own()))
    claimed.close()
    with pytest.raises(UsageError, match="own_network="):
        check(asked(tmp_path, work=own(digest="b2")))


@pytest.fixture
def text(tmp_path):
    """A training in `ck` of the text in a file."""
    (tmp_path / "text.txt").write_text("to be or not to be")
    return {"data": "text", "data_path": str(tmp_path / "text.txt")}


def forget_data(folder, *, earlier):
    """Empty the digest of the data of a manifest, or, as in one of an `earlier` version, remove
    it."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["data_digest"] = ""
    if earlier:
        del manifest["data_digest"]
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("reshard", [False, True])
def test_changed_files_at_the_same_path_are_refused_by_name(tmp_path, text, reshard):
    folder = tmp_path / "ck"
    train(folder, work=text, program=FIXED)
    now = {"work": text, "program": FIXED}
    if reshard:
        now = {"devices": 2, "work": HALF | text, "program": FIXED | ALL_REDUCE, "reshard": True}
    check(asked(folder, **now))
    (tmp_path / "text.txt").write_text("to be or not to bet")
    before = content(folder)
    for attempt in (check, lambda spec: claim(folder, spec)):
        with pytest.raises(UsageError, match=r'text\.txt have changed.*set "data_digest" to "" in'):
            attempt(asked(folder, **now))
    assert content(folder) == before
    (tmp_path / "text.txt").write_text("to be or not to be")
    check(asked(folder, **now))


@pytest.mark.parametrize("earlier", [False, True])
def test_the_way_on_with_changed_files_is_to_empty_their_digest(tmp_path, text, earlier):
    folder = tmp_path / "ck"
    begun = train(folder, work=text)
    (tmp_path / "text.txt").write_text("something else")
    forget_data(folder, earlier=earlier)
    check(asked(folder, work=text))
    claimed = claim(folder, asked(folder, work=text))
    claimed.close()
    assert claimed.manifest.training == begun.training
    assert claimed.manifest.data_digest not in ("", begun.data_digest)
    (tmp_path / "text.txt").write_text("to be or not to be")
    with pytest.raises(UsageError, match="have changed"):
        check(asked(folder, work=text))


def test_data_without_files_and_files_that_only_other_hosts_have_are_not_compared(tmp_path, text):
    generated, folder = tmp_path / "generated", tmp_path / "ck"
    assert train(generated).data_digest == ""
    check(asked(generated))
    begun = train(folder, work=text)
    (tmp_path / "text.txt").unlink()
    check(asked(folder, work=text))
    claimed = claim(folder, asked(folder, work=text))
    claimed.adopt(asked(folder, work=text))
    claimed.close()
    assert claimed.manifest == begun
    assert json.loads((folder / MANIFEST).read_text())["data_digest"] == begun.data_digest


@pytest.mark.parametrize(
    ("sync", "setting"),
    [
        ("hybrid", "pipeline_stages"),
        ("tensor-parallel", "tensor_parallel_size"),
        ("context-parallel", "context_parallel_size"),
    ],
)
def test_another_division_of_the_network_is_another_training(tmp_path, sync, setting):
    def divided(size):
        return {"devices": 4, "program": {"sync": sync, setting: size}}

    train(tmp_path, **divided(2))
    check(asked(tmp_path, **divided(2)))
    with pytest.raises(UsageError, match=rf"{setting}=2; .*{setting}=4"):
        check(asked(tmp_path, **divided(4)))


def test_a_manifest_that_is_a_fifo_is_not_waited_for(tmp_path):
    train(tmp_path)
    (tmp_path / MANIFEST).unlink()
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(DataError, match=MANIFEST):
        check(asked(tmp_path))


def test_no_link_of_a_strangers_folder_is_followed(tmp_path):
    """`write_durably` writes under another name first."""
    folder, other = tmp_path / "ck", tmp_path / "other"
    folder.mkdir()
    other.write_text("mine")
    (folder / f".{MANIFEST}.{os.getpid()}").symlink_to(other)
    (folder / MANIFEST).symlink_to(other)
    train(folder)
    assert other.read_text() == "mine"
    check(asked(folder))


ALL_REDUCE = {"sync": "all-reduce"}
FIXED = {"deterministic": True}
HALF = {"batch_per_device": 32}
MICRO = {"accumulation_steps": 2}
RESNET = {"network": "resnet-18"}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"program": FIXED}, {"devices": 2, "work": HALF, "program": FIXED | ALL_REDUCE}),
        (
            {"devices": 2, "work": HALF, "program": FIXED | ALL_REDUCE},
            {"work": {}, "program": FIXED},
        ),
        (
            {"devices": 4, "program": FIXED | {"sync": "all-reduce-16"}},
            {
                "devices": 8,
                "work": HALF,
                "program": FIXED | {"sync": "all-reduce-copied-16"},
            },
        ),
        (
            {"work": RESNET},
            {
                "devices": 2,
                "work": RESNET | HALF,
                "program": {"sync": "all-reduce", "batch_norm": "global"},
            },
        ),
    ],
    ids=["1 to 2", "2 to 1", "16 bits", "normalized over the global batch"],
)
def test_a_training_with_the_same_steps_is_resharded(tmp_path, before, now):
    begun = train(tmp_path, **before)
    spec = asked(tmp_path, reshard=True, **now)
    with pytest.raises(UsageError, match="--reshard"):
        check(dataclasses.replace(spec, checkpointing=asked(tmp_path).checkpointing))
    check(spec)
    claimed = claim(tmp_path, spec)
    assert json.loads((tmp_path / MANIFEST).read_text())["settings"] == begun.settings
    claimed.adopt(spec)
    claimed.close()
    check(asked(tmp_path, **now))
    assert claimed.manifest.training == begun.training


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [
        ({"program": FIXED}, {"devices": 2, "program": FIXED | ALL_REDUCE}, "batch_per_device=32"),
        ({}, {"devices": 2, "work": HALF, "program": ALL_REDUCE}, "deterministic=true"),
        (
            {"program": FIXED},
            {"devices": 2, "work": HALF, "program": FIXED | {"sync": "local-sgd"}},
            "local-sgd",
        ),
        (
            {"devices": 2, "program": FIXED | {"sync": "parameter-server"}},
            {"work": {"batch_per_device": 128}, "program": FIXED},
            "parameter-server",
        ),
        (
            {"program": FIXED},
            {"devices": 2, "work": HALF, "program": FIXED | {"sync": "all-reduce-16"}},
            "sync=all-reduce ",
        ),
        (
            {"work": RESNET},
            {"devices": 2, "work": RESNET | HALF, "program": ALL_REDUCE},
            "batch_norm=global",
        ),
        (
            {"work": MICRO, "program": FIXED},
            {"devices": 2, "work": MICRO | HALF, "program": FIXED | ALL_REDUCE},
            "micro-batches",
        ),
        (
            {"program": FIXED},
            {"devices": 2, "work": HALF | {"seed": 1}, "program": FIXED | ALL_REDUCE},
            "seed=0",
        ),
        (
            {"program": FIXED},
            {
                "devices": 2,
                "work": HALF | {"rate_scaling": "linear"},
                "program": FIXED | ALL_REDUCE,
            },
            "rate_scaling=linear",
        ),
    ],
    ids=[
        *("global batch", "dropout", "local-sgd", "parameter-server", "16 bits"),
        *("batch_norm", "micro-batches", "seed", "rate_scaling"),
    ],
)
def test_a_training_whose_steps_or_state_would_differ_is_not_resharded(tmp_path, before, now, word):
    train(tmp_path, **before)
    files = content(tmp_path)
    with pytest.raises(UsageError, match=word):
        check(asked(tmp_path, reshard=True, **now))
    assert content(tmp_path) == files
