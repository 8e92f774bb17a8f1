"""Images with masks: pairs, crops, classes, and what is wrong with a folder of them."""

import numpy as np
import pytest

from cubemesh import data, networks
from cubemesh.batches import PADDING
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.data.masks import has_masks, takes_masks
from cubemesh.data.masks import source as masks
from cubemesh.data.masks.source import MaskedImages, MaskFolder, check_files, nearest, open_masks
from cubemesh.errors import DataError, UsageError

Image = pytest.importorskip("PIL.Image")

SIDE, CLASSES = 64, 4
SHADES = np.array([0, 80, 160, 240], np.uint8)
"""Grey value of each class, so that an image shows its mask."""


def blocks(number):
    """The mask of image `number`: a class for each quarter, another order for each image."""
    order = np.random.default_rng(number).permutation(CLASSES)
    return np.kron(order.reshape(2, 2), np.ones((SIDE // 2, SIDE // 2))).astype(np.uint8)


def save(folder, number, mask=None, *, image=None, mode=None):
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    classes = blocks(number)
    Image.fromarray(SHADES[classes] if image is None else image).save(
        folder / "images" / f"{number:02}.png"
    )
    made = Image.fromarray(classes if mask is None else mask)
    if mode == "P":
        made.putpalette(list(range(256)) * 3)
    elif mode:
        made = made.convert(mode)
    made.save(folder / "masks" / f"{number:02}.png")


def opened(folder, split="train", classes=CLASSES, side=SIDE, options=None):
    shape = (3, side, side)
    return open_masks(folder, split, shape, classes, options or ImageOptions())


@pytest.fixture
def folder(tmp_path):
    for number in range(10):
        save(tmp_path, number, mode="P" if number % 2 else None)
    return tmp_path


def shown(images):
    """The class that each pixel of the images shows."""
    grey = images[:, 0] * 255
    return abs(grey[..., None] - SHADES.astype(np.float32)).argmin(axis=-1)


def test_each_pixel_has_the_class_that_its_mask_states(folder):
    source = opened(folder)
    assert (source.samples, source.classes) == (9, CLASSES), "every tenth is for validation"
    assert has_masks(source)
    batch = source.batch(np.arange(9))
    assert batch.labels.shape == (9, SIDE * SIDE)
    labels = batch.labels.reshape(9, SIDE, SIDE)
    assert (shown(batch.images) == labels).mean() > 0.95, "they differ at edges alone"
    middle = SIDE // 4
    assert [row[middle, middle] for row in labels] == [blocks(n)[0, 0] for n in range(9)]
    assert opened(folder, "validation").samples == 1


def test_a_mask_is_cropped_and_mirrored_as_its_image(folder):
    source = opened(folder, side=32)
    epochs = [source.epoch(number, seed=3) for number in range(2)]
    batches = [epoch.source.batch(np.arange(9)) for epoch in epochs]
    for batch in batches:
        labels = batch.labels.reshape(9, 32, 32)
        assert (shown(batch.images) == labels).mean() > 0.9
    assert (batches[0].labels != batches[1].labels).any(), "each epoch crops anew"
    again = source.epoch(0, seed=3).source.batch(np.arange(9))
    assert (again.labels == batches[0].labels).all()
    assert sorted(epochs[0].order) == list(range(9))


def test_pixels_of_255_do_not_count(folder):
    mask = blocks(0)
    mask[:, SIDE // 2 :] = 255
    save(folder, 0, mask)
    labels = opened(folder).batch(np.array([0])).labels
    assert (labels == PADDING).mean() == pytest.approx(0.5, abs=0.02)
    assert opened(folder).batch(np.array([1])).labels.min() == 0


def test_pairs_that_cannot_be_used_are_replaced_and_counted(folder):
    save(folder, 0, blocks(0)[:-1])
    save(folder, 1, mode="RGB")
    (folder / "masks" / "02.png").write_bytes(b"no image")
    source = opened(folder)
    batch = source.batch(np.arange(4))
    assert (batch.labels == batch.labels[3]).all(), "by the next one that is usable"
    assert (batch.images == batch.images[3]).all()
    counts = source.tally(np.ones(9, bool))
    assert counts.skipped_images == 3
    reasons = " ".join(source.ledger.reasons())
    for words in ("another size", "in colours", "not an image"):
        assert words in reasons
    split = opened(folder, "validation")
    (folder / "masks" / "09.png").write_bytes(b"")
    with pytest.raises(DataError, match="unusable"):
        split.batch(np.array([0]))


def test_a_skipped_pair_of_an_evaluation_does_not_count(tmp_path):
    for number in range(2):
        save(tmp_path / "train", number)
        save(tmp_path / "val", number)
    save(tmp_path / "val", 0, mode="RGB")
    labels = opened(tmp_path, "validation").batch(np.arange(2)).labels
    assert (labels[0] == PADDING).all()
    assert (labels[1] != PADDING).all()


def test_a_class_that_the_network_has_not_is_an_error_with_the_remedy(folder):
    with pytest.raises(DataError, match=r"class 3.*2 classes.*classes=4"):
        opened(folder, classes=2).batch(np.arange(9))


def test_folders_that_are_not_pairs_are_refused(tmp_path, folder):
    check_files(folder)
    with pytest.raises(DataError, match="no folder images"):
        check_files(tmp_path / "masks")
    (folder / "masks" / "03.png").unlink()
    with pytest.raises(DataError, match=r"1 of 9 images .* 03.png.*masks/03.png"):
        opened(folder)
    save(tmp_path / "other" / "train", 0)
    with pytest.raises(DataError, match="neither val nor validation"):
        check_files(tmp_path / "other")
    (tmp_path / "none" / "images").mkdir(parents=True)
    (tmp_path / "none" / "masks").mkdir()
    with pytest.raises(DataError, match="no images for train"):
        MaskFolder(tmp_path / "none", "train", 2)
    with pytest.raises(UsageError, match="cache_decoded"):
        opened(folder, options=ImageOptions(cache_decoded=True))


def test_the_nearest_pixel_is_the_one_at_the_middle():
    classes = np.arange(16).reshape(4, 4)
    assert nearest(classes, (0, 0, 4, 4), 2, 2).tolist() == [[5, 7], [13, 15]]
    assert nearest(classes, (1, 1, 3, 3), 2, 2).tolist() == [[5, 6], [9, 10]]
    assert nearest(classes, (0, 0, 1, 1), 2, 2).tolist() == [[0, 0], [0, 0]]


def test_a_mask_has_eight_bits_a_pixel_before_it_is_cropped(folder, monkeypatch):
    types = []
    monkeypatch.setattr(
        masks,
        "nearest",
        lambda classes, *rest: [types.append(classes.dtype), nearest(classes, *rest)][1],
    )
    assert opened(folder).batch(np.arange(2)).labels.dtype == np.int64
    assert types == [np.uint8] * 2


def test_masks_are_for_networks_that_score_pixels(folder):
    unet = networks.entry("unet").make(32, CLASSES)
    assert takes_masks(unet)
    for name in ("resnet-18", "deep-speech-gru", "gpt2", "captioner"):
        assert not takes_masks(networks.build(name)), name
    found = data.open_for(unet, "masks", str(folder), "train", seed=0)
    assert isinstance(found, MaskedImages)
    with pytest.raises(UsageError, match=r"little-cnn does not take them.*unet"):
        data.check_feeds("masks", networks.build("little-cnn"))
    with pytest.raises(UsageError, match="generated-shapes"):
        data.check_feeds("digits", unet)
    with pytest.raises(UsageError, match="masks"):
        data.check_feeds("parallel-text", unet)
