"""ONNX files against ONNX Runtime and PyTorch."""

import shutil

import numpy as np
import pytest

from cubemesh import export_network, networks
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import ALL_LAYERS
from cubemesh.onnx import export, writer
from cubemesh.onnx.operators import OPERATORS
from cubemesh.schema import CheckpointSettings, RunSpec, Train
from cubemesh.training.checkpoint import Checkpoint, save
from cubemesh.training.manifest import claim
from layer_samples import (
    NARROW,
    REPRESENTATIVES,
    chosen,
    clicks,
    decoder,
    dilated,
    documents,
    gated,
    mixed,
    recurrences,
    trained_weights,
)
from onnx_graphs import cheap_weights, session_of

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cubemesh.frameworks.pytorch.module import build_modules

SIZES = {
    "translator": {"sequence_length": 6, "vocabulary": 300, "hidden": 64},
    "translator-plain": {"sequence_length": 6, "vocabulary": 300, "hidden": 64},
    "translator-2x": {"sequence_length": 6, "vocabulary": 300, "hidden": 64},
    "deep-speech-gru": {"sequence_length": 9, "vocabulary": 29, "hidden": 64},
    "deep-speech-rnn": {"sequence_length": 9, "vocabulary": 29, "hidden": 64},
    "captioner": {"image_size": 11, "sequence_length": 4, "vocabulary": 300, "hidden": 64},
}
"""Sizes of networks of sequences; images have the smallest size."""


def small(name):
    if name in NARROW:
        return NARROW[name]()
    if name in SIZES:
        return networks.build(name, **SIZES[name])
    return networks.build(name, networks.entry(name).smallest_image_size, 10)


def inputs_of(network, samples):
    rng = np.random.default_rng(samples)
    return {
        i.name: rng.random((samples, *i.shape), np.float32)
        if i.dtype == "float"
        else rng.integers(0, np.array(i.vocabularies or i.classes), (samples, *i.shape))
        for i in network.inputs
    }


def by_pytorch(network, weights, inputs):
    built = build_modules(network)
    built.load(weights)
    with torch.no_grad():
        (scores,) = built.evaluation.eval()(*map(torch.from_numpy, inputs.values()))
    return scores.numpy()


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_every_network_of_the_zoo_has_the_scores_of_pytorch(name):
    network = small(name)
    weights = cheap_weights(network)
    session = session_of(export.model(network, weights).SerializeToString())
    for samples in (1, 3):  # the batch size is free
        inputs = inputs_of(network, samples)
        (found,) = session.run(None, inputs)
        wanted = by_pytorch(network, weights, inputs)
        assert found.shape == (samples, *network.shapes[network.output])
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "make", [mixed, gated, decoder, dilated, recurrences, chosen, documents, clicks]
)
def test_settings_that_the_zoo_leaves_out(make):
    network = make()
    weights, inputs = trained_weights(network), inputs_of(network, 3)
    session = session_of(export.model(network, weights).SerializeToString())
    (found,) = session.run(None, inputs)
    wanted = by_pytorch(network, weights, inputs)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_every_layer_type_has_operators():
    assert set(OPERATORS) == set(ALL_LAYERS.values())


def test_heads_of_training_are_left_out():
    network = small("googlenet-paper")
    names = {node.name for node in export.model(network, network.draw(0)).graph.node}
    trained_only = {n.name for n in network.nodes} - {
        n.name for n in network.needed(network.output)
    }
    assert trained_only
    assert not trained_only & names


def test_shared_weights_are_stored_once():
    net = NetworkBuilder("tied")
    x = net.embedding(net.token_input("tokens", 4, 1000), 8, name="words")
    net.classify(net.linear(x, 1000, bias=False, share={"weight": "words.weight"}))
    network = net.build()
    made = export.model(network, network.draw(0))
    arrays = [onnx.numpy_helper.to_array(a) for a in made.graph.initializer]
    assert sum(a.size for a in arrays if a.size >= 8000) == 8000


def test_a_fixed_batch_size():
    network = small("little-cnn")
    made = export.model(network, network.draw(0), batch=5)
    assert made.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 5


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The checkpoints of a training; that of a real one is built in inference/test_plans.py."""
    folder = tmp_path_factory.mktemp("made")
    checkpointing = CheckpointSettings(checkpoints=str(folder))
    spec = RunSpec(
        work=Train(network="little-cnn", batch_per_device=64), checkpointing=checkpointing
    )
    claimed = claim(folder, spec)
    snapshot = Snapshot(weights=networks.build("little-cnn").draw(1))
    training = claimed.manifest.training
    save(folder, 0, 1, Checkpoint(step=5, snapshot=snapshot, training=training))
    claimed.close()
    return folder


def test_weights_of_a_checkpoint_are_exported(tmp_path, checkpoints):
    done = export_network(file=tmp_path / "trained.onnx", checkpoints=checkpoints)
    assert done.network == "little-cnn"
    assert done.weights.startswith("checkpoint after step ")
    drawn_file = tmp_path / "drawn.onnx"
    export_network("little-cnn", drawn_file)
    trained, fresh = (
        onnx.load(str(path)).graph.initializer[0].raw_data
        for path in (tmp_path / "trained.onnx", drawn_file)
    )
    assert trained != fresh
    assert len(trained) == len(fresh)


def test_hopeless_exports_are_refused_with_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="Name a network, such as resnet-50"):
        export_network()
    with pytest.raises(UsageError, match="Nearest: resnet-18"):
        export_network("resnt-18", tmp_path / "x.onnx")
    with pytest.raises(UsageError, match="--step 3 needs --checkpoints DIR"):
        export_network("little-cnn", step=3)
    with pytest.raises(UsageError, match="has no checkpoints of cubemesh"):
        export_network(checkpoints=tmp_path)
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        export_network("little-cnn", tmp_path / "no" / "x.onnx")
    monkeypatch.setattr(writer, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="holds at most 1,000"):
        export_network("little-cnn", tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_named(tmp_path, checkpoints):
    folder = shutil.copytree(checkpoints, tmp_path / "checkpoints")
    (path,) = folder.glob("step-*/rank-0-of-1.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"rank-0-of-1\.safetensors"):
        export_network(file=tmp_path / "x.onnx", checkpoints=folder)
    assert not (tmp_path / "x.onnx").exists()
