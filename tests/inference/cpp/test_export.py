"""A network in C++: its scores are those of ONNX Runtime, and nothing in a file makes it crash."""

import struct
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from cubemesh import export_network, networks
from cubemesh.cpp_compiler import cpp_compiler
from cubemesh.errors import UsageError
from cubemesh.inference.cpp.export import EXAMPLE, HEADER, export_cpp, serialized
from cubemesh.onnx.export import graph_of
from cubemesh.schema.work import TrainSteps
from layer_samples import NARROW, every_layer, mixed, trained_weights
from onnx_graphs import by_onnxruntime

pytest.importorskip("onnx")
needs_compiler = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")

OF_IMAGES = {
    "every-layer": every_layer,
    "mixed": mixed,
    **{name: NARROW[name] for name in ("vit-b16", "convnext-t", "unet")},
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Runs the compiled example: (folder, name of the network, images) → what the process ended
    with."""
    folder = tmp_path_factory.mktemp("cpp")
    network = every_layer()
    export_cpp(network, network.draw(0), folder)
    command = [cpp_compiler(), "-O0", "-std=c++17", "-Wall", "-Wextra", "-Werror", EXAMPLE]
    subprocess.run([*command, "-o", "classify"], cwd=folder, check=True, capture_output=True)

    def run(file, images):
        images.astype("<f4").tofile(folder / "images.bin")
        return subprocess.run(
            ["./classify", str(file), "images.bin"], cwd=folder, capture_output=True, text=True
        )

    return run


def scores_of(done):
    assert done.returncode == 0, done.stderr
    return np.array([line.split() for line in done.stdout.splitlines()], np.float64)


@needs_compiler
@pytest.mark.parametrize("name", OF_IMAGES)
def test_scores_are_those_of_onnx_runtime(program, tmp_path, name):
    network = OF_IMAGES[name]()
    weights = trained_weights(network)
    export_cpp(network, weights, tmp_path)
    shape = network.inputs[0].shape
    images = np.random.default_rng(2).random((3, *shape), np.float32)
    found = scores_of(program(tmp_path / f"{network.name}.cmnet", images))
    (wanted,) = by_onnxruntime(graph_of(network, weights), {network.inputs[0].name: images})
    wanted = wanted.reshape(found.shape)
    assert abs(found - wanted).max() < 2e-5 * abs(wanted).max()


@needs_compiler
def test_a_damaged_file_or_a_wrong_input_is_a_sentence(program, tmp_path):
    network = every_layer()
    content = serialized(network, network.draw(0))
    images = np.zeros((1, *network.inputs[0].shape), np.float32)
    file = tmp_path / "damaged.cmnet"
    rng = np.random.default_rng(5)
    lengths = [0, 7, 9, *rng.integers(10, len(content), 12)]
    damaged = [content[:length] for length in lengths] + [content + b"x"]
    for place in rng.integers(0, 700, 25):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.integers(8)
        damaged.append(bytes(changed))
    refused = 0
    for bytes_ in damaged:
        file.write_bytes(bytes_)
        done = program(file, images)
        assert done.returncode in (0, 1), done
        if done.returncode:
            refused += 1
            assert len(done.stderr.splitlines()) == 1
    assert refused > len(lengths), "what is too short, and most of what was changed"
    file.write_bytes(content)
    assert "3 x 12 x 12" in program(file, images[:, :2]).stderr
    assert "cannot be opened" in program(tmp_path / "absent", images).stderr


def whole(*numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def words(text):
    return whole(len(text)) + text.encode()


def listed(*numbers):
    return whole(len(numbers), *numbers)


def operator(kind, inputs, **attributes):
    """Bytes of an operator whose result is value 2."""
    own = b"".join(words(name) + listed(*value) for name, value in attributes.items())
    return words(kind) + listed(*inputs) + whole(2, len(attributes)) + own + whole(0)


def hostile(one, constant=None, integers=0, values=b"", input_shape=(-1, 3, 4, 4)):
    """Bytes of a network of one operator, with one constant of this shape."""
    constants = whole(0)
    if constant is not None:
        constants = whole(1, 1, integers) + listed(*constant) + values
    content = b"CMNET001" + words("n") + whole(3) + constants + whole(1) + one
    return content + whole(0) + listed(*input_shape) + whole(2)


WIDE = 1 << 20
GROUP = next(n for n in range(5, 99, 2) if pow(n, -1, 1 << 64) * 3 % (1 << 64) < 1 << 63)
INNER = pow(GROUP, -1, 1 << 64) * 3 % (1 << 64)
"""Their product is 3 in 64 bits."""


@needs_compiler
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            hostile(
                operator("Conv", (0, 1), pads=(WIDE, WIDE, WIDE - 5, WIDE - 5)), (0, 3, WIDE, WIDE)
            ),
            "impossible size",
        ),
        (
            hostile(operator("Conv", (0, 1), pads=(1000,) * 4), (0, 3, 1000, 1000)),
            "impossible size",
        ),
        (hostile(operator("Conv", (0, 1), group=(GROUP,)), (0, INNER, 1, 1)), "impossible size"),
        (hostile(operator("Conv", (0, 1), group=(2,)), (0, 1, 1, 1)), "channels that do not fit"),
        (hostile(operator("Transpose", (0,), perm=(3, 1, 3, 3))), "an axis given twice"),
        (hostile(operator("Transpose", (0,), perm=(0, 1, 2, 2))), "an axis given twice"),
        (hostile(operator("Shape", (0,))), "the result is not of floats"),
        (hostile(operator("Identity", (0,)), input_shape=(-1, 3)), "not a network of images"),
        (hostile(operator("Identity", (0,)), input_shape=(-1, 3, 0, 4)), "not a network of images"),
        (hostile(operator("Reshape", (0, 1)), (2,), 1, whole(0, 48)), ""),
        (
            hostile(operator("Reshape", (0, 1)), (3,), 1, whole(-1, 1 << 62, 4)),
            "impossible size",
        ),
        (hostile(operator("Identity", (1,)), (0, 4)), "not scores of images"),
        (hostile(operator("Identity", (1,)), (), 0, bytes(4)), "not scores of images"),
    ],
)
def test_a_hostile_network_is_a_sentence(program, tmp_path, content, sentence):
    file = tmp_path / "hostile.cmnet"
    file.write_bytes(content)
    done = program(file, np.ones((1, 3, 4, 4), np.float32))
    assert done.returncode == bool(sentence), done
    assert sentence in done.stderr


def test_the_folder_has_the_network_the_header_and_an_example(tmp_path):
    done = export_network("little-cnn", tmp_path / "out", image_size=16, cpp=True)
    assert (done.format, done.network) == ("C++", "little-cnn")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(["little-cnn.cmnet", HEADER, EXAMPLE])
    content = (tmp_path / "out" / "little-cnn.cmnet").read_bytes()
    assert len(content) == done.size_bytes > 4 * done.parameters
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export_network("little-cnn", tmp_path / "file", image_size=16, cpp=True)


def test_a_name_like_a_path_stays_in_the_folder(tmp_path):
    network = replace(every_layer(), name="../own/net/")
    export_cpp(network, network.draw(0), tmp_path / "out")
    assert (tmp_path / "out" / "net.cmnet").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("translator", "does not take an image"), ("deep-speech-gru", "GRU")],
)
def test_what_the_header_does_not_run_is_refused(name, words):
    sizes = {"sequence_length": 6, "vocabulary": 30, "hidden": 16}
    network = networks.build_for(TrainSteps(network=name, batch_per_device=1, **sizes))
    with pytest.raises(UsageError, match=rf"{words}.*Leave --cpp out"):
        serialized(network, network.draw(0))
