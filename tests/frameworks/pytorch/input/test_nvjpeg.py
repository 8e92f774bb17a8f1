"""Calls of nvJPEG, and images that it must not decode. Here the library is Pillow behind nvJPEG's
functions; test_jpeg_gpu.py calls nvJPEG itself."""

import contextlib
import ctypes
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from cubemesh.batches import EncodedImage
from cubemesh.frameworks.pytorch.input import nvjpeg
from cubemesh.frameworks.pytorch.input.crops import tensor_of


class Library:
    """Pillow behind nvJPEG's calls; `calls` are (backend, size of the minibatch) of those that
    decoded."""

    backends = (nvjpeg.HARDWARE, nvjpeg.HYBRID)
    fails = None
    """A status that every decoding ends with."""

    def __init__(self):
        self.calls, self.prepared = [], {}

    def nvjpegCreateEx(self, backend, allocator, pinned, flags, handle):  # noqa: N802
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = backend
        return 0 if backend in self.backends else 7  # NVJPEG_STATUS_ARCH_MISMATCH

    def nvjpegJpegStateCreate(self, *args):  # noqa: N802
        return 0

    def nvjpegGetImageInfo(self, handle, data, length, components, sampling, widths, heights):  # noqa: N802
        try:
            widths[0], heights[0] = Image.open(io.BytesIO(data)).size
        except OSError:
            return 3  # NVJPEG_STATUS_BAD_JPEG
        return 0

    def nvjpegDecodeBatchedInitialize(self, handle, state, size, threads, output):  # noqa: N802
        self.prepared[handle.value] = size
        self.mode = {nvjpeg.RGB: "RGB", nvjpeg.GREY: "L"}[output]
        return 0

    def nvjpegDecodeBatched(self, handle, state, data, lengths, targets, stream):  # noqa: N802
        assert len(targets) == self.prepared[handle.value]
        self.calls.append((handle.value, len(targets)))
        if self.fails is not None:
            return self.fails
        places = ctypes.cast(data, ctypes.POINTER(ctypes.c_void_p))
        for n, (length, target) in enumerate(zip(lengths, targets, strict=True)):
            given = ctypes.string_at(places[n], length)
            try:
                image = Image.open(io.BytesIO(given))
                made = np.asarray(image.convert(self.mode))
            except OSError:
                return 3
            if "progression" in image.info and handle.value == nvjpeg.HARDWARE:
                return 4  # NVJPEG_STATUS_JPEG_NOT_SUPPORTED
            for row, line in enumerate(made):
                at = target.channel[0] + row * target.pitch[0]
                ctypes.memmove(at, np.ascontiguousarray(line).ctypes.data, line.nbytes)
        return 0

    def nvjpegJpegStateDestroy(self, state):  # noqa: N802
        return 0

    def nvjpegDestroy(self, handle):  # noqa: N802
        return 0


@pytest.fixture
def library(monkeypatch):
    found = Library()
    stream = type("Stream", (), {"cuda_stream": 0, "synchronize": lambda self: None})()
    monkeypatch.setattr(nvjpeg, "_libraries", lambda: iter([found]))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    return found


def encoded(width, height, mode="RGB", said=None, cut=None, progressive=False):
    file = io.BytesIO()
    values = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(values).convert(mode).save(file, "JPEG", progressive=progressive)
    size, data = said or (width, height), file.getvalue()[:cut]
    return EncodedImage(data, size, (0, 0, *size), False, str, str, progressive=progressive)


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_each_image_is_written_to_its_buffer(library, channels, mode):
    images = [encoded(33, 17, mode), encoded(8, 40, mode), encoded(64, 64, mode)]
    found = nvjpeg.NvJpeg(torch.device("cpu"), channels).decode(images)
    for image, tensor in zip(images, map(tensor_of, found), strict=True):
        want = np.asarray(Image.open(io.BytesIO(image.data)).convert(mode))
        assert tensor.shape == (channels, *want.shape[:2])
        assert (one := found[images.index(image)]).data_ptr() == tensor.data_ptr()
        assert (one.shape, one.stride()) == (tensor.shape, tensor.stride())
        np.testing.assert_array_equal(tensor.permute(1, 2, 0).numpy().squeeze(), want)


def test_an_image_larger_than_its_header_is_not_decoded(library):
    images = [encoded(20, 20), encoded(300, 300, said=(20, 20)), encoded(20, 20)]
    found = nvjpeg.NvJpeg(torch.device("cpu"), 3).decode(images)
    assert [one is None for one in found] == [False, True, False]
    assert library.calls == [(nvjpeg.HARDWARE, 2)]


def test_a_broken_image_does_not_affect_others(library):
    images = [encoded(20 + n, 20) for n in range(5)]
    images[3] = encoded(30, 30, cut=400)
    decoder = nvjpeg.NvJpeg(torch.device("cpu"), 3)
    for _ in range(2):
        found = decoder.decode(images)
        assert [n for n, one in enumerate(found) if one is None] == [3]
    assert decoder.decode([]) == []


def test_progressive_images_are_decoded_by_kernels(library):
    images = [encoded(20 + n, 20, progressive=n % 3 == 0) for n in range(7)]
    found = nvjpeg.NvJpeg(torch.device("cpu"), 3).decode(images)
    assert all(one is not None for one in found)
    assert sorted(library.calls) == [(nvjpeg.HYBRID, 3), (nvjpeg.HARDWARE, 4)]


def test_a_gpu_without_jpeg_hardware_decodes_by_kernels(library, monkeypatch):
    monkeypatch.setattr(library, "backends", (nvjpeg.HYBRID,))
    assert None not in nvjpeg.NvJpeg(torch.device("cpu"), 3).decode([encoded(20, 20)])
    assert library.calls == [(nvjpeg.HYBRID, 1)]


@pytest.mark.parametrize(("status", "words"), [(5, "out of memory"), (8, "status 8")])
def test_a_failure_that_no_image_caused_is_raised(library, monkeypatch, status, words):
    decoder = nvjpeg.NvJpeg(torch.device("cpu"), 3)
    monkeypatch.setattr(library, "fails", status)
    with pytest.raises(RuntimeError, match=words):
        decoder.decode([encoded(20, 20), encoded(20, 20)])
    assert len(library.calls) == 1


def test_the_next_library_is_tried_where_one_does_not_start(library, monkeypatch):
    dead = Library()
    dead.backends = ()
    monkeypatch.setattr(nvjpeg, "_libraries", lambda: iter([dead, library]))
    assert None not in nvjpeg.NvJpeg(torch.device("cpu"), 3).decode([encoded(20, 20)])
    monkeypatch.setattr(nvjpeg, "_libraries", lambda: iter([dead]))
    with pytest.raises(ImportError, match="does not start"):
        nvjpeg.NvJpeg(torch.device("cpu"), 3)


def test_a_missing_library_is_an_import_error(monkeypatch):
    monkeypatch.setattr(nvjpeg, "NAMES", ("libnothing.so.1",))
    monkeypatch.setattr(nvjpeg, "PACKAGES", (("cubemesh", "*.nothing"), ("no_such_package", "*")))
    with pytest.raises(ImportError, match="not installed"):
        nvjpeg.NvJpeg(torch.device("cpu"), 3)
