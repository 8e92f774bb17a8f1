"""Training logs of other programs become records; damaged ones are refused with their line.

Each log in training_logs/ is written after the statement that prints it: pytorch/examples
imagenet/main.py (`AverageMeter('Time', ':6.3f')`), huggingface/pytorch-image-models train.py
(`train_one_epoch`), keras/src/utils/progbar.py, tensorflow/benchmarks benchmark_cnn.py
(`get_perf_timing_str`), apache/mxnet python/mxnet/callback.py (`Speedometer`), BVLC/caffe
src/caffe/solver.cpp (`Solver::Step`), mlperf_logging, huggingface/transformers trainer_utils.py
(`speed_metrics`), NVIDIA/Megatron-LM megatron/training/training.py (`training_log`), the progress
printer of NeMo, pytorch/torchtitan components/metrics.py (`MetricsProcessor.log`).
"""

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import cubemesh as library
from cubemesh.api.import_ import training_log_settings
from cubemesh.errors import CubemeshError, DataError, UsageError
from cubemesh.schema import Cpu, Gpu, Machine, Memory, RunRecord, Software
from cubemesh.store import Store
from cubemesh.store.imports.import_training import is_training_log
from cubemesh.store.imports.training_logs.formats import FORMATS
from cubemesh.store.imports.training_logs.intervals import (
    Interval,
    LogContext,
    Sum,
    differences,
    joined,
    total_rounding,
)
from cubemesh.store.run_statistics import run_windows

LOGS = Path(__file__).parent / "training_logs"


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "s.db"
    Store.open(str(path)).close()
    return path


@pytest.fixture
def store(empty, tmp_path):
    """An empty store in SQLite; nothing here depends on the database."""
    shutil.copy(empty, tmp_path / "s.db")
    with Store.open(str(tmp_path / "s.db")) as opened:
        yield opened


@dataclass(frozen=True)
class Log:
    """A log, what must be stated for it, and what it measured."""

    file: str
    format: str
    samples_per_s: float
    windows: int
    stated: dict[str, object] = field(default_factory=dict)
    batch: int = 0
    devices: int = 1
    within: float = 0.005


BF16 = {"precision": "bf16"}
ONE = {"network": "resnet-50", "precision": "fp32", "devices": 1}
CASES = [
    Log(
        *("pytorch_imagenet.log", "pytorch-imagenet", 1024.0, 14),
        ONE | {"batch_per_device": 256, "skip_steps": 11},
        batch=256,
    ),
    Log(
        *("timm.log", "timm", 1024 / 0.385, 11),
        {"network": "resnet50", "devices": 8, "skip_steps": 51} | BF16,
        batch=1024,
        devices=8,
    ),
    Log("keras3.log", "keras", 128 / 0.0315, 8, ONE | {"batch_per_device": 128}, batch=128),
    Log("keras2.log", "keras", 128 / 0.031, 9, ONE | {"batch_per_device": 128}, batch=128),
    Log(
        *("tf_cnn_benchmarks.log", "tf-cnn-benchmarks", 800.0, 11),
        {"precision": "fp16"},
        batch=256,
        devices=4,
    ),
    Log(
        *("mxnet.log", "mxnet", 1235.5, 20),
        {"network": "resnet-50", "devices": 4, "global_batch": 256, "precision": "fp32"},
        batch=256,
        devices=4,
    ),
    Log("caffe.log", "caffe", 32 * 20 / 5.71, 10, ONE | {"batch_per_device": 32}, batch=32),
    Log(
        *("mlperf_epochs.log", "mlperf", 1281167 / 21.504, 7),
        {"framework": "mxnet", "devices": 8, "precision": "fp16"},
        batch=3264,
        devices=8,
    ),
    Log(
        *("mlperf_blocks.log", "mlperf", 384 / 199.434, 7),
        {"framework": "pytorch", "devices": 8} | BF16,
        batch=8,
        devices=8,
    ),
    Log(
        *("hugging_face.log", "hugging-face", 124.878, 1),
        {"network": "bert-base"} | BF16,
        batch=640,
        devices=8,
    ),
    Log(
        *("all_results.json", "hugging-face", 124.878, 1),
        {"network": "bert-base", "devices": 8, "global_batch": 640} | BF16,
        batch=640,
        devices=8,
    ),
    Log(
        *("megatron.log", "megatron", 256 / 4.0965, 9),
        {"network": "gpt-7b", "skip_steps": 10},
        batch=256,
        devices=16,
    ),
    Log(
        *("nemo.log", "nemo", 8 / 1.506, 7),
        {"network": "llama-8b", "devices": 8, "skip_steps": 1} | BF16,
        batch=8,
        devices=8,
    ),
    Log(
        *("torchtitan.log", "torchtitan", 5763 * 8 / 8192, 10),
        {"network": "llama-8b", "devices": 8, "skip_steps": 1} | BF16,
        batch=8,
        devices=8,
    ),
]


def imported(log: Log, store) -> RunRecord:
    found = library.import_training_log(LOGS / log.file, store=store, **log.stated)
    assert (found.format, found.new) == (log.format, True)
    return found.record


@pytest.mark.parametrize("log", CASES, ids=lambda log: log.file)
def test_a_log_becomes_a_record_with_its_samples_per_second(log: Log, store):
    record = imported(log, store)
    assert store.records() == [record]
    assert record.figure("throughput_per_s") == pytest.approx(log.samples_per_s, rel=log.within)
    assert len(record.measured) == log.windows
    assert record.spec.global_batch == log.batch
    assert len(record.ranks) == record.spec.placement.devices == log.devices
    step_s = record.figure("step_s")
    assert step_s == pytest.approx(log.batch / log.samples_per_s, rel=0.02)
    assert (record.key.software_id, record.key.code_version) == ("imported", "imported")
    assert record.source.startswith(f"log of {FORMATS[log.format].title}: {log.file} (SHA-256 ")
    (warning,) = [w for w in record.warnings if w.code == "imported"]
    assert log.file in warning.cause


def test_every_format_has_a_log():
    assert {log.format for log in CASES} == set(FORMATS)


def test_a_log_is_stored_once_and_other_settings_are_another_record(store, tmp_path):
    log = CASES[0]
    first = imported(log, store)
    copy = tmp_path / "copy.log"
    copy.write_bytes((LOGS / log.file).read_bytes())
    for path in (LOGS / log.file, copy):
        again = library.import_training_log(path, store=store, **log.stated)
        assert (again.new, again.record) == (False, first)
    library.import_training_log(copy, store=store, **{**log.stated, "precision": "tf32"})
    assert len(store.records()) == 2


def test_everything_that_a_log_lacks_is_named_at_once(store):
    with pytest.raises(UsageError) as refused:
        library.import_training_log(LOGS / "caffe.log", store=store)
    for word in ("network", "precision", "devices", "batch_per_device"):
        assert f"--set {word}=" in str(refused.value)
    with pytest.raises(UsageError, match="framework"):
        library.import_training_log(
            LOGS / "mlperf_epochs.log", store=store, devices=8, precision="fp16"
        )
    assert store.records() == []


def test_what_a_log_states_is_taken_from_it(store):
    tf = imported(next(c for c in CASES if c.format == "tf-cnn-benchmarks"), store)
    assert (tf.spec.work.network, tf.spec.work.data) == ("resnet-50", "synthetic")
    assert tf.spec.program.sync == "all-reduce"
    megatron = imported(next(c for c in CASES if c.format == "megatron"), store)
    assert (megatron.spec.program.precision, megatron.spec.work.sequence_length) == ("bf16", 4096)
    assert megatron.spec.work.data == "unknown"
    assert megatron.spec.program.sync == "tp=4,pp=1,dp=4", "not an all-reduce of 16 replicas"
    assert "Its 16 devices worked as tp=4,pp=1,dp=4." in megatron.warnings[0].cause
    assert len(run_windows(megatron)) == 9
    titan = imported(next(c for c in CASES if c.format == "torchtitan"), store)
    assert titan.spec.work.sequence_length == 8192
    assert titan.spec.program.sync == "tp=1,pp=1,dp=8,zero=3"
    mlperf = imported(CASES[7], store)
    assert mlperf.spec.work.network == "resnet-50"


def test_skipped_steps_are_warm_up(store):
    record = imported(CASES[0], store)
    whole = library.import_training_log(
        LOGS / CASES[0].file, store=store, **{**CASES[0].stated, "skip_steps": 0}
    ).record
    assert [w.phase for w in record.windows][:3] == ["warm-up", "warm-up", "measure"]
    assert record.windows[2].start_s == pytest.approx(5.5, rel=0.02), "the first step takes 3 s"
    assert whole.figure("throughput_per_s") < record.figure("throughput_per_s")
    with pytest.raises(UsageError, match="leaves no"):
        library.import_training_log(
            LOGS / CASES[0].file, store=store, **{**CASES[0].stated, "skip_steps": 10_000}
        )


def test_validation_in_a_time_is_stated(store, tmp_path):
    path = tmp_path / "k.log"
    line = "391/391 - 14s - 35ms/step - accuracy: 0.55 - val_accuracy: 0.5"
    path.write_text(f"Epoch 1/1\n{line}\n")
    found = library.import_training_log(path, store=store, batch_per_device=128, **ONE)
    assert "validation" in found.record.warnings[0].cause


def test_a_machine_of_the_store_gets_the_record(store):
    machine = Machine(
        hostname="node7",
        cpu=Cpu(),
        memory=Memory(),
        gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-0"),),
        software=Software(python="3.11", system="Linux"),
    )
    store.save_machine(machine)
    stated = ONE | {"batch_per_device": 32, "machine_id": machine.machine_id[:6]}
    record = library.import_training_log(LOGS / "caffe.log", store=store, **stated).record
    assert record.key.machine_id == machine.machine_id
    assert [(r.host, r.device_name) for r in record.ranks] == [("node7", "NVIDIA H200")]
    assert record.figure("mfu_percent") or record.figure("model_flops_per_s")
    with pytest.raises(UsageError, match="fits no machine"):
        library.import_training_log(
            LOGS / "caffe.log", store=store, **{**stated, "machine_id": "zz"}
        )


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (("devices=0",), "devices"),
        (("devices=9999",), "4,096"),
        (("precision=int4",), "precision"),
        (("network=a\x1b[31m",), "network"),
        (("format=tensorbord",), "format"),
        (("sync=gossip",), "strategy"),
        (("sync=tp=2,qq=3",), "key of a layout"),
        (("sync=tp=0",), "whole number"),
        (("batch_size=3",), "setting of training logs"),
        (("batch_per_device=3", "devices=2", "global_batch=7"), "global_batch"),
        (("skip_steps=-1",), "skip_steps"),
        (("device_name=" + "x" * 200,), "device_name"),
    ],
)
def test_invalid_settings_are_refused(pairs, words, store):
    with pytest.raises(UsageError, match=words):
        library.import_training_log(LOGS / "caffe.log", store=store, **training_log_settings(pairs))


def test_the_layout_of_a_log_that_prints_none_can_be_given(store):
    stated = {"network": "llama-8b", "devices": 8, "sync": "dp=4,tp=2"} | BF16
    record = library.import_training_log(LOGS / "nemo.log", store=store, **stated).record
    assert record.spec.program.sync == "tp=2,pp=1,dp=4"


def test_stated_devices_are_groups_of_a_layout(store):
    stated = {"network": "gpt-7b", "skip_steps": 10, "devices": 4}
    record = library.import_training_log(LOGS / "megatron.log", store=store, **stated).record
    assert (record.spec.placement.devices, record.spec.program.sync) == (4, "all-reduce")
    assert "devices=4 was given, so each is a group of them" in record.warnings[0].cause


@pytest.mark.parametrize(
    ("line", "layout"),
    [
        (
            "data-parallel-size: 2, tensor-model-parallel size: 2, pipeline-model-parallel size: 2",
            "tp=2,pp=2,dp=2",
        ),
        (
            "data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 1",
            "all-reduce",
        ),
        (
            "data-parallel size: 4, context-parallel size: 2, tensor-model-parallel size: 1",
            "tp=1,pp=1,cp=2,dp=4",
        ),
        ("data-parallel size: 0, tensor-model-parallel size: 8", "all-reduce"),
        ("data-parallel size: 4, encoder-tensor-model-parallel size: 2", "all-reduce"),
    ],
)
def test_a_layout_is_that_of_the_log(line, layout, store, tmp_path):
    path = tmp_path / "m.log"
    step = " iteration {i}/ 100 | elapsed time per iteration (ms): 100.0 | global batch size: 8 |"
    lines = [f"using world size: 8, {line}", *(step.format(i=i) for i in (1, 2, 3))]
    path.write_text("\n".join(lines))
    stated = {"network": "gpt-7b", "precision": "bf16"}
    record = library.import_training_log(path, store=store, **stated).record
    assert record.spec.program.sync == layout


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("['dp_replicate', 'dp_shard', 'tp'], [2, 2, 2]", "tp=2,pp=1,dp=4,zero=3,shard=2"),
        ("['pp', 'dp_shard', 'cp'], [2, 2, 2]", "tp=1,pp=2,cp=2,dp=2,zero=3"),
        ("['dp_replicate'], [8]", "all-reduce"),
        ("['dp_shard'], [2, 4]", "all-reduce"),
    ],
)
def test_the_mesh_of_torchtitan_is_a_layout(mesh, layout, store, tmp_path):
    path = tmp_path / "t.log"
    text = (LOGS / "torchtitan.log").read_text()
    path.write_text(text.replace("['dp_shard'], [8]", mesh))
    stated = {"network": "llama-8b", "precision": "bf16", "devices": 8}
    record = library.import_training_log(path, store=store, **stated).record
    assert record.spec.program.sync == layout


def test_a_global_batch_that_does_not_divide_is_refused(store):
    stated = {"network": "gpt-7b", "precision": "bf16", "devices": 24}
    with pytest.raises(UsageError, match="data-parallel groups"):
        library.import_training_log(LOGS / "megatron.log", store=store, **stated)


IMAGENET = "Epoch: [0][{i:3d}/400]\tTime {t:6.3f} ({t:6.3f})\tData  0.0 ( 0.0)\n"
ALL = {**ONE, "batch_per_device": 8, "framework": "pytorch", "sequence_length": 8}
HOSTILE = [
    "Iteration 20 (3.5 iter/s, 1e300s/20 iters), loss = 1\n",
    "Iteration 20 (1e300 iter/s, 5.7s/20 iters), loss = 1\n",
    "Epoch[0] Batch [20]\tSpeed: 0.00 samples/sec\n",
    "Epoch[0] Batch [20]\tSpeed: 1e308 samples/sec\n",
    ":::MLLOG " + "[" * 10_000 + "]}\n",
    ":::MLLOG {" + '"a":{' * 90 + "}" * 90 + "}\n",
    ':::MLLOG {"key": "epoch_start", "time_ms": 1' + "0" * 400 + "}\n",
    ':::MLLOG {"key": 7, "time_ms": 1}\n',
    ':::MLLOG {"key": "epoch_stop", "time_ms": 1}\n',
    "".join(
        f':::MLLOG {{"key": "{k}", "time_ms": {t}, "value": {v}}}\n'
        for k, t, v in (
            *(("global_batch_size", 1, 8), ("train_samples", 1, 80)),
            *(("epoch_start", 9, "null"), ("epoch_stop", 5, "null")),
        )
    ),
    IMAGENET.format(i=1, t=0.0),
    IMAGENET.format(i=1, t=9.0) + IMAGENET.format(i=11, t=0.0),
    "Train: 0 [   0/601 (  0%)]  Loss: 6 (6)  Time: 0.1s, 10.00/s  (0.1s, 0.00/s)\n",
    "Train: 0 [   0/601 (  0%)]  Loss: 6 (6)  Time: 0.1s, 10.00/s  (0.5s, 70.00/s)\n",
    "79/79 [====] - 1s 9ms/step - loss: 1\n",
    "Epoch 1/1\n0/0 [====] - 0s 0us/step - loss: 1\n",
    "10\timages/sec: 0.0 +/- 0.1 (jitter = 0.6)\t8.1\n",
    "step: 10 loss: 1 tps: 0 mfu: 1%\n",
    " iteration 10/ 100 | elapsed time per iteration (ms): 0.0 | global batch size: 8 |\n",
    "{'train_samples_per_second': 5.0}\n",
    "{'train_runtime': 0.0, 'train_samples_per_second': 0.0}\n",
    "x" * 30_000,
    "",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_cannot_be_meant_is_refused_in_one_line(text, store, tmp_path):
    path = tmp_path / "hostile.log"
    path.write_text(text)
    with pytest.raises(CubemeshError) as refused:
        library.import_training_log(path, store=store, **ALL)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 2000
    assert store.records() == []


def test_damaged_logs_are_read_or_refused_and_never_crash(store, tmp_path):
    draw = random.Random(7)
    path = tmp_path / "damaged.log"
    for log in CASES:
        text = (LOGS / log.file).read_text()
        for _ in range(4):
            letters = list(text)
            for _ in range(12):
                at = draw.randrange(len(letters))
                letters[at] = draw.choice("0987654321.-|[](),\x00\x1b \n9e")
            cut = draw.randrange(1, len(letters))
            path.write_text("".join(letters[:cut]))
            try:
                found = library.import_training_log(path, store=store, **log.stated)
            except CubemeshError:
                continue
            assert found.record.figure("throughput_per_s") > 0
    assert all(record.ok for record in store.records())


def test_files_that_are_no_log_are_not_taken_for_one(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("Epoch 1\nloss 0.5\n")
    assert not is_training_log(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        is_training_log(path)
    with path.open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(DataError, match="larger"):
        is_training_log(path)


def test_the_program_is_searched_at_the_beginning_of_a_log(tmp_path, store):
    path = tmp_path / "a.log"
    noise = "loading a shard of the data set\n" * 140_000
    path.write_text(noise + (LOGS / "caffe.log").read_text())
    assert not is_training_log(path)
    stated = ONE | {"batch_per_device": 32}
    with pytest.raises(DataError, match="not a training log"):
        library.import_training_log(path, store=store, **stated)
    found = library.import_training_log(path, store=store, format="caffe", **stated)
    assert found.record.figure("throughput_per_s") == pytest.approx(112.1, rel=0.01)


def test_intervals_of_running_means_are_as_long_as_their_rounding_needs():
    context = LogContext(file="a.log")
    sums = [Sum(steps=n, seconds=0.25 * n, error_s=0.0005 * n, line=n) for n in range(1, 2000, 10)]
    found = list(differences(context, [sums, sums], skip_steps=0))
    assert sum(one.steps for one in found) == 2 * 1991
    assert all(one.rounding <= 0.0101 for one in found)
    assert sum(one.seconds for one in found) == pytest.approx(0.25 * 2 * 1991)
    lengths = [one.steps for one in found][: len(found) // 2]
    assert lengths[0] == 1
    assert lengths[-1] > 100


def test_long_logs_are_joined_to_a_bounded_number_of_intervals():
    many = [
        Interval(first_step=n, steps=1, seconds=0.1, errors_s=(0.001, 0.0), samples=8)
        for n in range(3001)
    ]
    few = joined(many, 500)
    assert len(few) <= 500
    assert sum(one.steps for one in few) == 3001
    assert sum(one.samples or 0 for one in few) == 8 * 3001
    assert total_rounding(few) == pytest.approx(0.01)


def test_errors_that_neighbours_share_cancel_in_the_sum():
    context = LogContext(file="a.log")
    sums = [Sum(steps=n, seconds=float(n), error_s=0.001 * n, line=n) for n in (10, 200, 4000)]
    found = list(differences(context, [sums], skip_steps=0))
    assert len(found) == 3
    assert total_rounding(found) == pytest.approx(0.001)


def test_an_interval_includes_what_rounding_may_change(store):
    """Keras prints 31 ms in each epoch, so windows alone would leave no interval at all."""
    record = imported(next(c for c in CASES if c.file == "keras2.log"), store)
    figure = record.figures["throughput_per_s"]
    assert (figure.high - figure.low) / figure.value == pytest.approx(2 * 0.5 / 31, rel=0.01)


def test_the_command_imports_twice_and_its_record_compares(tmp_path, cubemesh):
    store = ("--store", str(tmp_path / "s.db"))
    words = [w for k, v in CASES[4].stated.items() for w in ("--set", f"{k}={v}")]
    command = ("import", str(LOGS / CASES[4].file), *words, "--json", *store)
    first, again = (cubemesh(*command) for _ in range(2))
    assert [first.returncode, again.returncode] == [0, 0], first.stderr
    document = json.loads(first.stdout)
    assert document["kind"] == "imported_training"
    assert document["new"] == [document["records"][0]["run_id"]]
    assert document["records"][0]["source"].startswith("log of tf_cnn_benchmarks")
    assert json.loads(again.stdout)["new"] == []
    assert "stored already" in again.stderr
    other = ("import", str(LOGS / CASES[5].file), "--json", *store)
    stated = [w for k, v in CASES[5].stated.items() for w in ("--set", f"{k}={v}")]
    second = json.loads(cubemesh(*other, *stated).stdout)["new"][0]
    compared = cubemesh("compare", document["new"][0], second, "--json", *store)
    assert compared.returncode == 0, compared.stderr
    differing = {d["what"] for d in json.loads(compared.stdout)["differences"]}
    assert {"framework", "source"} <= differing
    shown = cubemesh("results", document["new"][0], *store)
    assert "tf_cnn_benchmarks.log" in shown.stdout
    refused = cubemesh("import", str(LOGS / CASES[4].file), "--collective", "broadcast", *store)
    assert refused.returncode == 2
