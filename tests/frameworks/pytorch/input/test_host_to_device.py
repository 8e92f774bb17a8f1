"""Minibatches of files on the device, where the device is the host: the same as decoded before."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from cubemesh.batches import EncodedBatch, EncodedImage
from cubemesh.data.feed import Feed
from cubemesh.data.images.encoded_source import REFUSED
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.frameworks.contract.program import SupportsDecoding, Unsupported
from cubemesh.frameworks.pytorch import build, captured
from cubemesh.frameworks.pytorch.input import jpeg, nvjpeg
from cubemesh.frameworks.pytorch.input.host_to_device import HostToDevice, low_precision_types
from cubemesh.networks import build as build_network

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
SIZE = 16
TOLERANCE = 1.02 / 255
"""What Pillow rounds away; boxes as large as these are decoded in full on both ways."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in range(2):
        place = tmp_path / "train" / f"class-{label}"
        place.mkdir(parents=True)
        (tmp_path / "val" / f"class-{label}").mkdir(parents=True)
        for n in range(4):
            soft = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).resize((24, 20))
            file = io.BytesIO()
            soft.save(file, "JPEG", quality=95)
            (place / f"{n}.jpg").write_bytes(file.getvalue())
    return tmp_path


def source(root: Path, **reading):
    return open_images(root, "train", (3, SIZE, SIZE), 10, ImageOptions(**reading))


@pytest.fixture
def decoding(make_request):
    """(precision, layout, …) → a request for a program that decodes on its device."""

    def make(**fields):
        request = make_request(build_network("little-cnn", SIZE, 10), **fields)
        program = dataclasses.replace(request.program, decode_location="device")
        return dataclasses.replace(request, program=program)

    return make


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("precision", "dtype", "error"),
    [("fp32", torch.float32, 0), ("fp64", torch.float64, 0), ("bf16", torch.bfloat16, 2**-8)],
)
def test_device_decoding_equals_host_decoding(root, decoding, layout, precision, dtype, error):
    wanted = source(root).epoch(2, 7).source.batch(np.arange(8))
    encoded = source(root, stays_encoded=True).epoch(2, 7).source.batch(np.arange(8))
    placer = HostToDevice(decoding(precision=precision, layout=layout))
    images, labels = placer.place(encoded)
    assert images.dtype == dtype
    assert images.stride()[1] == (1 if layout == "nhwc" else SIZE * SIZE)
    assert labels.tolist() == wanted.labels.tolist()
    assert np.abs(images.double().numpy() - wanted.images).max() <= TOLERANCE + error


def test_refused_images_are_decoded_by_the_host(root, decoding, monkeypatch):
    (root / "train/class-0/1.jpg").write_bytes(b"none of it")
    of_files = source(root, stays_encoded=True)
    plain = source(root)

    class Refuses(jpeg.HostDecoder):
        def decode(self, images):
            made = super().decode(images)
            return [None if n == 1 else one for n, one in enumerate(made)]

    monkeypatch.setattr(jpeg, "HostDecoder", Refuses)
    placer = HostToDevice(decoding())
    batch = of_files.batch(np.array([1, 4, 6]))
    assert isinstance(batch, EncodedBatch)
    images, labels = placer.place(batch)
    assert labels.tolist() == [0, 1, 1]
    want = plain.batch(np.array([2, 4, 6])).images
    assert np.abs(images.numpy() - want).max() <= TOLERANCE
    tally = of_files.tally(np.ones(8, bool))
    assert tally.by_host == {REFUSED: 1}
    assert tally.skipped_images == 1
    images, _ = placer.place(of_files.batch(np.array([4, 6, 7])))
    want = plain.batch(np.array([4, 6, 7])).images
    assert np.abs(images.numpy() - want).max() <= TOLERANCE, "pixels and files in one minibatch"


def test_an_image_of_another_size_than_its_header_is_decoded_by_the_host(
    root, decoding, monkeypatch
):
    class FindsAnother(jpeg.HostDecoder):
        def decode(self, images):
            first, *others = super().decode(images)
            return [first[:, :4, :4], *others]

    monkeypatch.setattr(jpeg, "HostDecoder", FindsAnother)
    of_files = source(root, stays_encoded=True)
    images, _ = HostToDevice(decoding()).place(of_files.batch(np.array([1, 4])))
    want = source(root).batch(np.array([1, 4])).images
    assert np.abs(images.numpy() - want).max() <= TOLERANCE
    assert of_files.tally(np.ones(8, bool)).by_host == {REFUSED: 1}


def test_training_on_files_equals_training_on_decoded_images(root, decoding, make_request):
    network = build_network("little-cnn", SIZE, 10)
    losses = {}
    for way, request in (("device", decoding()), ("host", make_request(network))):
        program = build(request)
        assert isinstance(program, SupportsDecoding)
        program.load(network.draw(0))
        feed = Feed(source(root, stays_encoded=way == "device"), 4, seed=3, threads=2, epochs=3)
        if way == "device":
            feed.decode_by(program)
        losses[way] = []
        for batch in feed:
            program.train_step(program.place(batch))
            losses[way].append(program.loss())
        assert feed.tried.all()
        feed.close()
        program.close()
    assert losses["device"] == pytest.approx(losses["host"], rel=2e-2)
    assert len(losses["device"]) == 6


def test_inputs_are_in_low_precision_only_where_every_reader_is(make_request):
    little = build_network("little-cnn", SIZE, 10)
    assert low_precision_types(make_request(little, precision="bf16")) == (torch.bfloat16,)
    assert low_precision_types(make_request(little, precision="fp32")) == (None,)
    by_layer = make_request(little, precision="bf16", precision_of=("conv1=fp32",))
    assert low_precision_types(by_layer) == (None,)
    assert captured.build(make_request(little, precision="fp16"))._static_types == (torch.float16,)


def test_a_missing_nvjpeg_has_an_installation_hint(monkeypatch):
    monkeypatch.setattr(nvjpeg, "_libraries", list)
    with pytest.raises(Unsupported, match=r"nvidia-nvjpeg.*decode_location=host"):
        jpeg.open_decoder(torch.device("cuda:0"), 3)
    assert isinstance(jpeg.open_decoder(torch.device("cpu"), 3), jpeg.HostDecoder)


def test_a_decoder_that_decodes_nothing_is_unsupported(root):
    files = source(root, stays_encoded=True).batch(np.arange(8)).rows

    class Nothing(jpeg.HostDecoder):
        fails = True

        def decode(self, images):
            return [None] * len(images) if self.fails else super().decode(images)

    decoder = Nothing()
    checked = jpeg.CheckedDecoder(decoder)
    assert checked.decode(files[:7]) == [None] * 7
    with pytest.raises(Unsupported, match="0 of 8"):
        checked.decode(files)
    decoder.fails = False
    assert None not in checked.decode(files)
    decoder.fails = True
    assert checked.decode(files) == [None] * 8, "broken files, of a decoder that works"


def test_an_encoded_image_is_decoded_whole_on_the_host(root):
    (row,) = source(root, stays_encoded=True).batch(np.array([0])).rows
    assert isinstance(row, EncodedImage)
    (whole,) = jpeg.HostDecoder().decode([row])
    assert whole.shape == (3, 20, 24)
    assert whole.dtype == torch.uint8
