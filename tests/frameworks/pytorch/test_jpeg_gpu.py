"""JPEGs decoded and cropped on the GPU against what the host makes of them."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from cubemesh.batches import EncodedImage
from cubemesh.data.feed import Feed
from cubemesh.data.images import generated_jpegs as made_images
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.frameworks.pytorch import build, captured
from cubemesh.frameworks.pytorch.input import jpeg, nvjpeg
from cubemesh.frameworks.pytorch.input.crops import Crop, crop_into, tensor_of
from cubemesh.frameworks.pytorch.input.host_to_device import HostToDevice
from cubemesh.networks import build as build_network

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]
SIZE = 64
WHOLE, CROPPED = 6.0, 3.0
"""Mean difference of decoders, of 255, on grain: they bring halved colours back to size in ways of
their own. libjpeg-turbo's two ways differ by 4.2, and by 0.9 where the image shrinks behind it."""


needs_nvjpeg = pytest.mark.skipif(not any(nvjpeg._libraries()), reason="nvJPEG is not installed")


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(made_images, "FILES", 64)
    monkeypatch.setattr(made_images, "DIFFERENT", 16)
    return made_images.folder()


def opened(root, **reading):
    return open_images(root, "train", (3, SIZE, SIZE), 10, ImageOptions(**reading))


@pytest.fixture
def decoding(make_request):
    def make(**fields):
        request = make_request(build_network("resnet-18", SIZE, 10), device="cuda:0", **fields)
        program = dataclasses.replace(request.program, decode_location="device")
        return dataclasses.replace(request, program=program)

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_kernel_crops_as_products_on_the_host_do(dtype, layout):
    pytest.importorskip("triton")
    draw = np.random.default_rng(0)
    crops, want = [], torch.empty(12, 3, SIZE, SIZE)
    for row in range(12):
        height, width = draw.integers(1, 900, 2).tolist()
        shape = (height, width, 3) if row % 2 else (3, height, width)
        source = torch.from_numpy(draw.integers(0, 256, shape, np.uint8))
        source = source.permute(2, 0, 1) if row % 2 else source
        left, top = draw.uniform(0, width - 1), draw.uniform(0, height - 1)
        box = (left, top, draw.uniform(left + 1, width), draw.uniform(top + 1, height))
        crops.append(Crop(source, box, bool(row % 3), 11 - row))
    crop_into(want, crops)
    images = torch.empty(12, 3, SIZE, SIZE, dtype=dtype, device="cuda", memory_format=layout)
    on_gpu = [dataclasses.replace(crop, source=crop.source.cuda()) for crop in crops]
    crop_into(images, on_gpu)
    error = {torch.float32: 2e-3 / 255, torch.float16: 2**-11, torch.bfloat16: 2**-8}[dtype]
    assert (images.float().cpu() - want).abs().max().item() <= error


def test_a_grey_crop_is_one_channel():
    pytest.importorskip("triton")
    source = torch.arange(200 * 100, dtype=torch.int64).remainder(251).to(torch.uint8)
    crop = Crop(source.view(1, 200, 100), (3.0, 5.0, 90.0, 190.0), True, 0)
    want, images = torch.empty(1, 1, 20, 20), torch.empty(1, 1, 20, 20, device="cuda")
    crop_into(want, [crop])
    crop_into(images, [dataclasses.replace(crop, source=crop.source.cuda())])
    assert (images.cpu() - want).abs().max().item() <= 2e-3 / 255


def test_nvjpeg_decodes_as_the_host_does_and_refuses_broken_files(made):
    try:
        decoder = jpeg.NvJpeg(torch.device("cuda:0"), 3)
    except ImportError as error:
        pytest.skip(str(error))
    rows = list(opened(made, stays_encoded=True).batch(np.arange(20)).rows)
    assert all(isinstance(row, EncodedImage) for row in rows)
    broken = dataclasses.replace(rows[5], data=b"\xff\xd8 this is none \xff\xd9")
    found = decoder.decode([*rows[:5], broken, *rows[6:]])
    torch.cuda.synchronize()
    assert found[5] is None
    for n in (0, 4, 6, 19):
        assert found[n].shape == (3, 375, 500)
        off = np.abs(tensor_of(found[n]).cpu().numpy().astype(float) - rows[n].whole())
        assert off.mean() <= WHOLE


def test_nvjpeg_decodes_progressive_images(made):
    try:
        decoder = jpeg.NvJpeg(torch.device("cuda:0"), 3)
    except ImportError as error:
        pytest.skip(str(error))
    for path in sorted(made.rglob("*.jpg"))[::2]:
        image = Image.open(path)
        image.load()
        image.save(path, "JPEG", quality=90, progressive=True)
    rows = list(opened(made, stays_encoded=True).batch(np.arange(20)).rows)
    assert 0 < sum(row.progressive for row in rows) < len(rows)
    found = decoder.decode(rows)
    torch.cuda.synchronize()
    for row, pixels in zip(rows, found, strict=True):
        off = np.abs(tensor_of(pixels).cpu().numpy().astype(float) - row.whole())
        assert off.mean() <= WHOLE


@needs_nvjpeg
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_minibatches_equal_those_of_the_host(made, decoding, layout, precision, dtype):
    (made / "class-0/00000.jpg").write_bytes(b"")
    Image.new("RGB", (300, 200), (9, 99, 199)).save(made / "class-0/00010.jpg", "PNG")
    want = opened(made).epoch(1, 3).source.batch(np.arange(20))
    placer = HostToDevice(decoding(precision=precision, layout=layout))
    for _ in range(3):
        encoded = opened(made, stays_encoded=True).epoch(1, 3).source.batch(np.arange(20))
        images, labels = placer.place(encoded)
        assert images.dtype == dtype
        assert labels.tolist() == want.labels.tolist()
        off = np.abs(images.float().cpu().numpy() - want.images)
        assert 255 * off.mean() <= CROPPED


@needs_nvjpeg
@pytest.mark.parametrize("make", [build, captured.build])
def test_training_decodes_ahead_of_its_steps(make, made, decoding):
    request = decoding(precision="bf16", layout="nhwc")
    program = make(request)
    program.load(request.network.draw(0))
    source = opened(made, stays_encoded=True)
    feed = Feed(source, 16, seed=0, threads=4, epochs=4)
    feed.decode_by(program)
    losses = []
    for batch in feed:
        program.train_step(program.place(batch))
        losses.append(program.loss())
    feed.close()
    program.close()
    assert len(losses) == 16
    assert np.isfinite(losses).all()
    assert sum(source.tally(feed.tried).by_host.values()) == 0
