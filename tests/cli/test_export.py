"""`cubemesh export` on the command line."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("forked_servers")

pytest.importorskip("onnx")


def test_a_network_is_written_and_described(cubemesh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cubemesh("export", "little-cnn")
    assert done.returncode == 0
    assert done.stdout.startswith("Wrote little-cnn.onnx (ONNX, 8.27 MiB): little-cnn, 2,168,362 ")
    assert (tmp_path / "little-cnn.onnx").stat().st_size > 8 << 20


def test_as_json(cubemesh, tmp_path):
    file = tmp_path / "small.onnx"
    words = ("--image-size", "16", "--classes", "4", "--seed", "3", "-o", str(file), "--json")
    found = json.loads(cubemesh("export", "little-cnn", *words).stdout)
    assert found["kind"] == "export"
    assert (found["file"], found["weights"]) == (str(file), "seed 3")
    assert found["size_bytes"] == file.stat().st_size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Name a network, such as resnet-50"),
        (("resnt-18",), "Nearest: resnet-18"),
        (("little-cnn", "--checkpoints", "."), "has no checkpoints of cubemesh"),
        (("little-cnn", "--image-size", "3"), "image_size"),
        (("little-cnn", "-o", "/dev/full"), "cannot be written: No space left on device"),
    ],
)
def test_wrong_use_ends_with_a_sentence(cubemesh, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = cubemesh("export", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
