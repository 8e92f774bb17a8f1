"""Crops made on the device against Pillow's, within what Pillow rounds away."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from cubemesh.frameworks.pytorch.input.crops import Crop, crop_into

ROUNDED = 1.02 / 255
"""Pillow rounds to whole values after each axis: half a value and half a value, and a little."""


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise, in which filters differ most."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def by_pillow(pixels: np.ndarray, box, mirrored: bool, size: int) -> np.ndarray:
    """(channels, height, width), 0 to 1."""
    made = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR, box=box)
    made = np.asarray(made).transpose(2, 0, 1) / 255
    return made[:, :, ::-1] if mirrored else made


def cropped(pixels: np.ndarray, box, mirrored: bool, size: int, **kind) -> np.ndarray:
    images = torch.empty((2, 3, size, size), **kind).fill_(float("nan"))
    crop_into(images, [Crop(torch.from_numpy(pixels).permute(2, 0, 1), box, mirrored, 1)])
    assert images[0].isnan().all(), "only its own row is written"
    return images[1].double().numpy()


sides = st.integers(1, 90)
shares = st.floats(0, 1)


@settings(deadline=None, max_examples=60)
@given(sides, sides, st.tuples(shares, shares, shares, shares), st.booleans(), st.integers(1, 40))
def test_any_crop_equals_pillow_s(height, width, cut, mirrored, size):
    left, top = cut[0] * (width - 1), cut[1] * (height - 1)
    right = left + max(1.0, cut[2] * (width - left))
    bottom = top + max(1.0, cut[3] * (height - top))
    box = (left, top, min(right, width), min(bottom, height))
    pixels = picture(height, width)
    want = by_pillow(pixels, box, mirrored, size)
    assert np.abs(cropped(pixels, box, mirrored, size) - want).max() <= ROUNDED


def test_a_usual_crop_in_every_type_and_layout():
    pixels, box = picture(375, 500), (37.0, 20.0, 430.0, 371.0)
    want = by_pillow(pixels, box, True, 64)
    for dtype, error in ((torch.float32, 0), (torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        for layout in (torch.contiguous_format, torch.channels_last):
            made = cropped(pixels, box, True, 64, dtype=dtype, memory_format=layout)
            assert np.abs(made - want).max() <= ROUNDED + error


def test_a_uniform_image_stays_uniform_and_white_is_one():
    for value in (0, 77, 255):
        pixels = np.full((50, 40, 3), value, np.uint8)
        made = cropped(pixels, (3.0, 2.0, 31.0, 48.0), False, 8)
        assert made == pytest.approx(value / 255, abs=1e-6)


def test_no_crops_change_nothing():
    images = torch.empty(0, 3, 4, 4)
    crop_into(images, [])
    assert images.shape == (0, 3, 4, 4)
    images = torch.full((2, 3, 4, 4), 0.5)
    crop_into(images, [])
    assert (images == 0.5).all()
