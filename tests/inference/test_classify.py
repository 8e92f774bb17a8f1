"""Image files to named classes: by a plan, by a checkpoint, with names of the data or of a file."""

import io

import numpy as np
import pytest
from rich.console import Console

import cubemesh
from cubemesh.api.inference import Classification
from cubemesh.data.class_names import CIFAR_10, class_names
from cubemesh.detection.labels import Grid
from cubemesh.errors import DataError, UsageError
from cubemesh.inference.classify import classify, image_shape, probabilities, read_names
from cubemesh.onnx.graph import BATCH, Value
from cubemesh.views.inference import print_classes

Image = pytest.importorskip("PIL.Image")


def image_file(path, pixels):
    """A PNG of (channels, height, width) bytes."""
    content = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, 2)).save(content, "PNG")
    path.write_bytes(content.getvalue())
    return path


@pytest.fixture
def photographs(tmp_path):
    """A black and a white image of the network's size, a large white one, and a text."""
    small = np.zeros((3, 8, 8), np.uint8)
    (tmp_path / "text.png").write_text("no image")
    return [
        image_file(tmp_path / "black.png", small),
        image_file(tmp_path / "white.png", small + 255),
        image_file(tmp_path / "large.png", np.full((3, 90, 60), 255, np.uint8)),
        tmp_path / "text.png",
        tmp_path / "missing.png",
    ]


def brightness(batch):
    """Scores of two classes: dark and bright."""
    mean = batch.mean((1, 2, 3))
    return np.stack([1 - mean, mean], axis=1).astype(np.float32) * 10


def test_images_get_the_names_of_their_classes(photographs):
    found = classify(photographs, (3, 8, 8), brightness, ("dark", "bright"))
    named = [[c.name for c in one.classes] for one in found]
    assert named == [["dark", "bright"], ["bright", "dark"], ["bright", "dark"], [], []]
    assert found[0].classes[0].probability == pytest.approx(1 / (1 + np.exp(-10)))
    assert [bool(one.reason) for one in found] == [False, False, False, True, True]
    assert [one.file for one in found] == [str(path) for path in photographs]
    (odd,) = classify(["a\0b.png"], (3, 8, 8), brightness, ())
    assert "null character" in odd.reason


def test_an_image_of_the_networks_size_is_taken_whole(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8)
    seen = []

    def scores(batch):
        seen.append(batch)
        return np.eye(1, 3, dtype=np.float32)

    classify([image_file(tmp_path / "x.png", pixels)], (3, 8, 8), scores, ())
    assert np.allclose(seen[0][0], pixels / 255)


def test_boxes_of_a_detector_are_in_pixels_of_the_file(photographs):
    """A cell of each image finds the right half of it; a dark image has nothing."""
    grid = Grid(size=32, side=2, classes=2)

    def scores(batch):
        found = np.zeros((len(batch), 4, 6), np.float32)
        found[:, 1, 1] = 0.8 * batch.mean((1, 2, 3))
        found[:, :, 2:] = -0.5, -0.5, 0.5, 1.5  # the whole column
        return found

    black, white, large, *others = classify(
        photographs, (3, 32, 32), scores, ("cat", "dog"), grid=grid
    )
    assert (black.classes, black.reason) == ((), "")
    assert [bool(one.reason) for one in others] == [True, True]
    for image, box in ((white, (4, 0, 8, 8)), (large, (30, 0, 60, 90))):
        (one,) = image.classes
        assert (one.name, one.probability) == ("dog", pytest.approx(0.8))
        assert one.box == pytest.approx(box)
    shown = io.StringIO()
    print_classes(
        Console(file=shown, width=100),
        Classification(model="ck", network="net", weights="step 1", images=(black, white, *others)),
    )
    for words in ("no object", "dog", "0.80", "4 0 8 8", "not read"):
        assert words in shown.getvalue()


def test_only_the_largest_and_without_names_by_number(photographs):
    (one,) = classify(photographs[:1], (3, 8, 8), brightness, (), top=1)
    assert [c.name for c in one.classes] == ["class 0"]


def test_scores_that_are_probabilities_stay():
    given = np.array([[0.1, 0.9], [0.5, 0.5]], np.float32)
    assert np.allclose(probabilities(given), given)
    assert probabilities(np.array([[1000.0, 0.0]]))[0, 0] == pytest.approx(1.0)
    with pytest.raises(UsageError, match="one row for an image"):
        probabilities(np.zeros((1, 4, 5)))


def test_networks_without_images_are_refused():
    tokens = Value(name="tokens", dtype="int64", shape=(BATCH, 1024))
    with pytest.raises(UsageError, match="gpt2 does not take images"):
        image_shape([tokens], "gpt2")


def test_names_of_a_file(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("tench\ngreat white shark\n")
    assert read_names(path) == ("tench", "great white shark")
    for content in (b"", b"a\n\nb\n", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"names\.txt"):
            read_names(path)
    for no_text in (tmp_path / "none.txt", tmp_path, "/dev/zero", "a\0b"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_names(no_text)


def test_names_of_data_sets(tmp_path):
    assert class_names("digits", None) == tuple("0123456789")
    assert class_names("cifar-10", "/gone") == CIFAR_10 == tuple(sorted(CIFAR_10))
    assert class_names("synthetic", None) == ()
    assert class_names("images", str(tmp_path / "gone")) == ()
    for name in ("cat", "ape"):
        (tmp_path / "train" / name).mkdir(parents=True)
    assert class_names("images", str(tmp_path)) == ("ape", "cat")


def test_wrong_use(tmp_path, photographs):
    with pytest.raises(UsageError, match="at least one image"):
        cubemesh.classify_images("x.plan", [])
    with pytest.raises(UsageError, match="top=0"):
        cubemesh.classify_images("x.plan", photographs, top=0)
    with pytest.raises(UsageError, match="has no checkpoints"):
        cubemesh.classify_images(tmp_path, photographs)
    with pytest.raises(UsageError, match="--device cuda:0"):
        cubemesh.classify_images(tmp_path, photographs, device="cuda:0")
