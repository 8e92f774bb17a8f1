import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cubemesh.data.images.resize import resize

SIZES = st.integers(1, 20)
IMAGES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 2), st.integers(1, 3), SIZES, SIZES),
    elements=st.floats(0, 1, width=32),
)


@given(IMAGES, SIZES, SIZES)
def test_shape_and_range(images: np.ndarray, height: int, width: int) -> None:
    small = resize(images, height, width)
    assert small.shape == (*images.shape[:2], height, width)
    assert small.dtype == np.float32
    assert small.min() >= images.min()
    assert small.max() <= images.max()


@given(st.floats(0, 1, width=32), SIZES, SIZES, SIZES)
def test_a_constant_image_stays_exactly_constant(v: float, old: int, h: int, w: int) -> None:
    image = np.full((1, 1, old, old), v, np.float32)
    assert (resize(image, h, w) == np.float32(v)).all()


@given(IMAGES)
def test_its_own_size_changes_nothing(images: np.ndarray) -> None:
    assert np.array_equal(resize(images, *images.shape[2:]), images)


def test_pixel_centres_by_hand() -> None:
    # Two pixels to four: centres of the new ones lie at -1/4, 1/4, 3/4 and 5/4 of the old.
    row = np.array([[[[0.0, 1.0]]]], np.float32)
    assert resize(row, 1, 4).ravel().tolist() == [0.0, 0.25, 0.75, 1.0]
    assert resize(row.transpose(0, 1, 3, 2), 4, 1).ravel().tolist() == [0.0, 0.25, 0.75, 1.0]


def test_halving_takes_the_mean_of_the_two_nearest() -> None:
    row = np.array([[[[0.0, 0.5, 0.25, 0.75]]]], np.float32)
    assert resize(row, 1, 2).ravel().tolist() == [0.25, 0.5]


@pytest.mark.parametrize(("old", "new"), [(8, 32), (8, 224), (32, 24), (32, 7), (5, 9)])
def test_agrees_with_pytorch(old: int, new: int) -> None:
    torch = pytest.importorskip("torch")
    images = np.random.default_rng(0).random((3, 2, old, old), dtype=np.float32)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(images), size=(new, new), mode="bilinear", align_corners=False
    ).numpy()
    assert np.allclose(resize(images, new, new), theirs, atol=1e-6)
