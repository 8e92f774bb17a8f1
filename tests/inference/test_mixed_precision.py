"""Operators that 8 bits destroy go back to fp32, the others stay; time and accuracy as a front."""

import numpy as np
import pytest

from cubemesh import Plan, build_plan
from cubemesh.inference.candidates import EnginePool
from cubemesh.inference.device import this_device
from cubemesh.inference.mixed_precision import front, keeps_bound, multiply_adds
from cubemesh.inference.plan_file import Proof, Trial, read_plan
from cubemesh.inference.runtime import compute_precision
from cubemesh.onnx.graph import Graph, Operator, Value
from cubemesh.onnx.writer import serialized

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CHANNELS = 16
SAMPLES = 4000


def fragile_graph(ratio=3000):
    """Three products. What the second one reads has two channels that are `ratio` times as large as
    the others and cancel each other: if it is large, no 8-bit range covers both."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(CHANNELS, 3, 3, 3)).astype(np.float32)
    first[0] = first[1] = ratio * first[0]
    second = rng.normal(size=(CHANNELS, CHANNELS, 1, 1)).astype(np.float32)
    second[:, 1] = -second[:, 0]
    third = rng.normal(size=(CHANNELS, 10)).astype(np.float32)
    zeros = np.zeros(CHANNELS, np.float32)
    return Graph(
        name="fragile",
        opset=20,
        inputs=(Value(name="image", dtype="float32", shape=("batch", 3, 6, 6)),),
        outputs=(Value(name="scores", dtype="float32", shape=("batch", 10)),),
        operators=(
            Operator(kind="Conv", inputs=("image", "w1", "b"), outputs=("wide",)),
            Operator(kind="Conv", inputs=("wide", "w2", "b"), outputs=("narrow",)),
            Operator(kind="Relu", inputs=("narrow",), outputs=("positive",)),
            Operator(kind="GlobalAveragePool", inputs=("positive",), outputs=("mean",)),
            Operator(kind="Flatten", inputs=("mean",), outputs=("flat",)),
            Operator(kind="Gemm", inputs=("flat", "w3", "b3"), outputs=("scores",)),
        ),
        constants={
            "w1": first,
            "w2": second,
            "w3": third,
            "b": zeros,
            "b3": np.zeros(10, np.float32),
        },
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The graph, and samples whose labels are the decisions of fp32."""
    folder = tmp_path_factory.mktemp("fragile")
    content = serialized(fragile_graph())
    (folder / "fragile.onnx").write_bytes(content)
    images = np.random.default_rng(1).normal(size=(SAMPLES, 3, 6, 6)).astype(np.float32)
    pool = EnginePool(["onnxruntime"], this_device(1), "fragile")
    labels = pool.scores("onnxruntime", content, {"image": images}).argmax(axis=1)
    np.savez(folder / "samples.npz", image=images, labels=labels)
    return folder


@pytest.fixture(scope="module")
def built(files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(files))
        return build_plan(
            str(files / "fragile.onnx"),
            files / "fragile.plan",
            samples=files / "samples.npz",
            accuracy=0.99,
            precisions=["int8"],
            engines=["onnxruntime"],
            seconds=0.01,
            threads=1,
        )


def test_only_the_operator_that_8_bits_destroy_goes_back_to_fp32(built, files):
    document = built.document
    whole = [p for p in document.proofs if "mixed" not in p.model]
    assert {p.verdict for p in whole} == {"loses"}
    (choice,) = document.choices
    note = next(n for n in document.models if n.name == choice.model)
    assert note.full_precision == ("narrow",)
    assert note.quantized == 2
    (proof,) = [p for p in document.proofs if p.model == choice.model]
    assert proof.verdict == "keeps"
    assert proof.ratio >= 0.99
    with Plan.load(built.file, threads=1) as plan, np.load(files / "samples.npz") as samples:
        scores = plan.run(samples["image"])
        assert np.mean(scores.argmax(axis=1) == samples["labels"]) >= 0.99


def test_the_front_is_in_the_plan(built, files):
    document, models = read_plan(files / "fragile.plan")
    assert document.front == built.document.front
    assert {point.model for point in document.front} == {t.model for t in document.trials}
    assert not all(point.dominated for point in document.front)
    assert {choice.model for choice in document.choices} <= models.keys()


def test_every_model_that_was_judged_is_noted(built):
    names = [note.name for note in built.document.models]
    assert len(names) == len(set(names))
    assert {p.model for p in built.document.proofs} <= set(names)


def test_a_network_that_keeps_the_accuracy_is_not_searched(files, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(files))
    content = serialized(fragile_graph(ratio=1))
    (files / "robust.onnx").write_bytes(content)
    images = np.load(files / "samples.npz")["image"]
    pool = EnginePool(["onnxruntime"], this_device(1), "robust")
    labels = pool.scores("onnxruntime", content, {"image": images}).argmax(axis=1)
    np.savez(files / "robust.npz", image=images, labels=labels)
    done = build_plan(
        str(files / "robust.onnx"),
        files / "robust.plan",
        samples=files / "robust.npz",
        accuracy=0.8,
        precisions=["int8"],
        engines=["onnxruntime"],
        seconds=0.01,
        threads=1,
    )
    assert not any("mixed" in note.name for note in done.document.models)


def test_multiply_adds_count_every_position():
    assert multiply_adds(fragile_graph()) == {
        "wide": CHANNELS * 3 * 9 * 16,
        "narrow": CHANNELS * CHANNELS * 16,
        "scores": CHANNELS * 10,
    }


def proof_of(verdict, *, samples, right, reference, accepted=True, precision="int8", model="int8"):
    return Proof(
        model=model,
        precision=precision,
        engine="onnxruntime",
        accepted=accepted,
        verdict=verdict,
        samples=samples,
        bound=0.99,
        reference_right=reference,
        right=right,
        lost=reference - right,
    )


def test_few_samples_need_not_show_what_they_cannot():
    assert keeps_bound(proof_of("keeps", samples=5000, right=4000, reference=4000))
    # 100 samples could not show it of fp32 itself, 5,000 could.
    assert keeps_bound(proof_of("cannot tell", samples=100, right=100, reference=100))
    assert not keeps_bound(proof_of("cannot tell", samples=5000, right=3970, reference=4000))
    lost = proof_of("loses", samples=5000, right=3000, reference=4000, accepted=False)
    assert not keeps_bound(lost)


def trial_of(model, precision, seconds, batch=1):
    return Trial(
        batch=batch,
        model=model,
        precision=precision,
        engine="onnxruntime",
        version="1",
        seconds=seconds,
    )


def test_a_candidate_is_dominated_by_one_that_is_faster_and_as_accurate():
    trials = [
        trial_of("fp32", "fp32", 4.0),
        trial_of("fp32", "bf16", 5.0),
        trial_of("int8", "int8", 1.0),
        trial_of("int8-mixed-1", "int8", 2.0),
        trial_of("int8-products", "int8", 3.0),
        trial_of("fp32", "fp32", 0.5, batch=8),
    ]
    common = {"samples": 1000, "reference": 1000}
    proofs = [
        proof_of("keeps", right=1000, precision="bf16", model="fp32", **common),
        proof_of("loses", right=900, accepted=False, **common),
        proof_of("keeps", right=995, model="int8-mixed-1", **common),
        proof_of("keeps", right=995, model="int8-products", **common),
    ]
    found = front(trials, proofs)
    assert [(p.batch, p.model, p.dominated) for p in found] == [
        (1, "int8", False),
        (1, "int8-mixed-1", False),
        (1, "int8-products", True),
        (1, "fp32", False),
        (1, "fp32", True),
        (8, "fp32", False),
    ]
    assert [p.accepted for p in found[:2]] == [False, True]


def test_a_pool_keeps_a_few_sessions_and_uses_them_again(monkeypatch):
    content = serialized(fragile_graph())
    pool = EnginePool(["onnxruntime"], this_device(1), "fragile", most=2)
    opened = []
    original = pool.open

    def counted(engine, content, precision="fp32", batch=None):
        opened.append(batch)
        return original(engine, content, precision, batch)

    monkeypatch.setattr(pool, "open", counted)
    for samples in (1, 2, 1, 2, 3, 2, 1):
        image = np.zeros((samples, 3, 6, 6), np.float32)
        assert pool.scores("onnxruntime", content, {"image": image}).shape == (samples, 10)
    assert opened == [1, 2, 3, 1]
    pool.close()
    pool.scores("onnxruntime", content, {"image": np.zeros((1, 3, 6, 6), np.float32)})
    assert opened[-1] == 1
    assert len(opened) == 5
    assert compute_precision("int8") == "fp32"
