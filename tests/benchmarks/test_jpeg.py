"""The benchmarks of the way from JPEG files to a training, in small."""

import json

import pytest

from cubemesh.data import made_images

pytest.importorskip("torch")
pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(made_images, "FILES", 32)
    monkeypatch.setattr(made_images, "DIFFERENT", 2)


def test_decoders_are_told_with_their_rates_or_as_absent(script, monkeypatch, tmp_path, capsys):
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


@pytest.mark.parametrize("decode_on", ["host", "device"])
def test_training_on_files_is_held_against_a_batch_that_lies_there(
    decode_on, script, monkeypatch, tmp_path
):
    feeding, written = script("jpeg_feeding"), tmp_path / "found.json"
    monkeypatch.setattr(feeding.os, "sched_getaffinity", lambda pid: {0})
    given = ["x", "--network", "little-cnn", "--size", "16", "--batch", "4", "--seconds", "0.05"]
    given += ["--rounds", "2", "--threads", "1", "--decode-on", decode_on, "--json", str(written)]
    monkeypatch.setattr("sys.argv", given)
    feeding.main()
    found = json.loads(written.read_text())
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["ratio"] == pytest.approx(sum(found["rounds"]) / 2)
    assert found["ratio"] > 0
    assert found["waited"] >= 0
    assert found["decoded_by_host"] == 0
