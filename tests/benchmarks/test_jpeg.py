"""The benchmarks of the way from JPEG files to a training, in small."""

import argparse
import json

import pytest

from cubemesh.data.images import generated_jpegs as made_images

torch = pytest.importorskip("torch")
pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(made_images, "FILES", 32)
    monkeypatch.setattr(made_images, "DIFFERENT", 2)


def test_decoders_are_shown_with_their_rates_or_as_absent(script, monkeypatch, tmp_path, capsys):
    decoding = script("jpeg_decoding")
    monkeypatch.setitem(decoding.WHOLE, "no_such_decoder", None)
    written = tmp_path / "found.json"
    given = ["x", "--workers", "2", "--seconds", "0.01", "--size", "32", "--json", str(written)]
    monkeypatch.setattr("sys.argv", given)
    decoding.main()
    lines = {line["decoder"]: line for line in json.loads(written.read_text())["lines"]}
    assert lines["to the network"]["images_per_s"] > 0
    assert lines["to the network, threads"]["workers"] == 2
    assert lines["to the network, processes"]["images_per_s"] > 0
    assert lines["whole, PIL"]["images_per_s"] > 0
    assert lines["whole, no_such_decoder"]["absent"] == "not installed"
    assert "absent: not installed" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_a_gpu_would_decode_with_is_absent_here_and_the_host_stands_in(script):
    decoding = script("jpeg_decoding")
    args = argparse.Namespace(device="cpu", batches=[2], seconds=0.01, size=16)
    lines = {line.decoder: line for line in decoding.on_gpu(args)}
    assert {name for name, line in lines.items() if line.absent} >= {"nvJPEG"}
    assert lines["decoded and cropped, 2 a call"].images_per_s > 0


def test_training_on_files_is_compared_with_a_resident_batch(script, monkeypatch, tmp_path):
    feeding, written = script("jpeg_feeding"), tmp_path / "found.json"
    monkeypatch.setattr(feeding.os, "sched_getaffinity", lambda pid: {0})
    given = ["x", "--network", "little-cnn", "--size", "16", "--batch", "4", "--seconds", "0.05"]
    given += [
        "--rounds",
        "2",
        "--threads",
        "1",
        "--decode-location",
        "device",
        "--json",
        str(written),
    ]
    monkeypatch.setattr("sys.argv", given)
    feeding.main()
    found = json.loads(written.read_text())
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["ratio"] == pytest.approx(sum(found["rounds"]) / 2)
    assert found["ratio"] > 0
    assert found["waited"] >= 0
    assert found["decoded_by_host"] == 0
