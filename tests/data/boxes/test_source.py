"""Images with boxes in KITTI's and COCO's format, and what is wrong with a folder of them."""

import json
import os

import numpy as np
import pytest

from cubemesh import data, networks
from cubemesh.data.boxes import source as boxes
from cubemesh.data.class_names import class_names
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.detection.labels import (
    ANY_CLASS,
    IGNORED,
    OUTSIDE,
    Grid,
    box_rows,
    corners,
)
from cubemesh.errors import DataError, UsageError

Image = pytest.importorskip("PIL.Image")

GRID = Grid(size=64, side=4, classes=3)
SHAPE = (3, 64, 64)
CAR = "Car 0.00 0 -1.57 20.0 10.0 60.0 40.0 1.5 1.6 3.9 0 0 0 0"


def line(name, left, top, right, bottom):
    return f"{name} 0.0 0 0.0 {left} {top} {right} {bottom} 0 0 0 0 0 0 0"


def save(folder, name, *lines, size=(200, 100)):
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 90, 90)).save(folder / "images" / f"{name}.png")
    (folder / "labels" / f"{name}.txt").write_text("\n".join(lines))


@pytest.fixture
def kitti(tmp_path):
    save(tmp_path / "train", "0", CAR, line("Van", 100, 0, 180, 100))
    save(tmp_path / "train", "1", line("DontCare", 0, 0, 200, 100))
    save(tmp_path / "val", "2", line("car", 150, 50, 250, 150), line("Tram", 0, 0, 20, 20))
    return tmp_path


@pytest.fixture
def coco(tmp_path):
    def write(split, **changed):
        content = {
            "images": [{"id": 7, "file_name": "a.png"}, {"id": 9, "file_name": "sub/b.png"}],
            "categories": [{"id": 5, "name": "dog"}, {"id": 2, "name": "cat"}],
            "annotations": [
                {"image_id": 7, "category_id": 5, "bbox": [100, 0, 50, 50], "iscrowd": 0},
                {"image_id": 7, "category_id": 2, "bbox": [0, 0, 20, 100], "iscrowd": 1},
            ],
        } | changed
        (tmp_path / "annotations").mkdir(exist_ok=True)
        path = tmp_path / "annotations" / f"instances_{split}2017.json"
        path.write_text(json.dumps(content))
        (tmp_path / f"{split}2017" / "sub").mkdir(parents=True, exist_ok=True)
        for name in ("a.png", "sub/b.png"):
            Image.new("RGB", (200, 100)).save(tmp_path / f"{split}2017" / name)
        return tmp_path

    write("train")
    write("val")
    return write


def opened(folder, split="train", grid=GRID, options=None):
    shape = (3, grid.size, grid.size)
    return boxes.open_boxes(folder, split, shape, grid, options or ImageOptions())


def rows_of(source, number):
    rows = box_rows(GRID, source.batch(np.array([number])).labels[0])
    return rows, corners(GRID, rows)


def test_boxes_in_kitti_format_are_stretched_as_their_image_is(kitti):
    boxes.check_files(kitti)
    (kitti / "train" / "images" / "notes.txt").touch()
    source = opened(kitti)
    assert source.encoded.ignored == {"not an image by its name": 1}
    assert (source.samples, source.encoded.classes) == (2, ("Car", "Van"))
    rows, found = rows_of(source, 0)
    assert rows[:, :2].tolist() == [[0, 0], [1, 0]]
    assert found[0] == pytest.approx([20 * 0.32, 10 * 0.64, 60 * 0.32, 40 * 0.64], abs=1 / 16)
    rows, _ = rows_of(source, 1)
    assert rows[:, :2].tolist() == [[ANY_CLASS, IGNORED]], "a region that does not count"
    assert class_names("boxes", str(kitti)) == ("Car", "Van")


def test_the_classes_are_those_of_the_training_images(kitti):
    source = opened(kitti, "validation")
    rows, found = rows_of(source, 0)
    assert rows[:, :2].tolist() == [[0, 0], [ANY_CLASS, IGNORED]], "whatever the case; Tram is none"
    assert found[0].tolist() == [48, 32, 64, 64], "cut at the edge of the image"
    (kitti / "classes.txt").write_text("Van\n")
    assert rows_of(opened(kitti), 0)[0][:, 0].tolist() == [ANY_CLASS, 0]
    (kitti / "classes.txt").write_text("DontCare\nVan\ncar\n")
    rows, _ = rows_of(opened(kitti), 1)
    assert rows[:, :2].tolist() == [[ANY_CLASS, IGNORED]], "of no class, although it has a line"
    with pytest.raises(UsageError, match=r"2 classes and the network has 1.*classes=2"):
        opened(kitti, grid=Grid(64, 4, 1))


def test_an_image_is_mirrored_with_its_boxes_half_of_the_time(kitti):
    source = opened(kitti)
    lefts = set()
    for epoch in range(12):
        pass_ = source.epoch(epoch, 0)
        assert sorted(pass_.order) == [0, 1]
        labels = pass_.source.batch(np.array([0])).labels[0]
        left, _, right, _ = corners(GRID, box_rows(GRID, labels))[0]
        assert right - left == pytest.approx(40 * 0.32, abs=1 / 8)
        lefts.add(round(float(left)))
    assert lefts == {round(20 * 0.32), round(64 - 60 * 0.32)}


def test_every_tenth_image_without_splits(tmp_path):
    for number in range(20):
        save(tmp_path, f"{number:02}", CAR)
    assert opened(tmp_path, "train").samples == 18
    assert opened(tmp_path, "validation").samples == 2


def test_boxes_in_coco_format(coco, tmp_path):
    boxes.check_files(tmp_path)
    source = opened(tmp_path)
    assert source.encoded.classes == ("cat", "dog"), "by the ids of the categories"
    rows, found = rows_of(source, 0)
    assert rows[:, :2].tolist() == [[1, 0], [0, IGNORED]]
    assert found.tolist() == [[32, 0, 48, 32], [0, 0, 6.375, 64]]
    assert not len(rows_of(source, 1)[0])
    assert opened(tmp_path, "validation").samples == 2


def test_a_box_outside_of_its_image_is_marked(kitti):
    save(kitti / "train", "0", line("Car", 300, 0, 400, 50), line("Car", 50, 50, 20, 60))
    rows, _ = rows_of(opened(kitti), 0)
    assert rows[:, 1].tolist() == [OUTSIDE, OUTSIDE]


def test_an_image_that_cannot_be_used_is_replaced_and_left_out_of_an_evaluation(kitti):
    (kitti / "train" / "images" / "0.png").write_bytes(b"no image")
    save(kitti / "val", "3", CAR)
    (kitti / "val" / "images" / "2.png").write_bytes(b"")
    assert rows_of(opened(kitti), 0)[0][:, 0].tolist() == [ANY_CLASS]
    labels = opened(kitti, "validation").batch(np.array([0, 1])).labels
    assert (labels[0] == -1).all()
    assert (labels[1] != -1).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Car 0 0 0 1 2 3", r"Line 1 of .*0\.txt has 7 fields.*8 or more"),
        (f"{CAR}\n\nCar 0 0 0 1 2 x 4", r"Line 3 .*left, top, right and bottom.*'1 2 x 4'"),
        ("Car 0 0 0 1 2 nan 4", "nan is not a coordinate"),
        ("Car 0 0 0 1 2 1e30 4", "1e.30 is not a coordinate"),
        (f"{'x' * 200} 0 0 0 1 2 3 4", "1 to 100 characters"),
        ("\n".join([CAR] * 129), "has 129 boxes, and an image may have 128"),
    ],
)
def test_a_label_file_that_breaks_the_format_is_an_error(kitti, text, message):
    (kitti / "train" / "labels" / "0.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        opened(kitti)


def test_label_files_of_others_are_not_trusted(kitti, tmp_path):
    path = kitti / "train" / "labels" / "0.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a text in UTF-8"):
        opened(kitti)
    path.write_bytes(b"\n" * (1 << 20) + b"\n")
    with pytest.raises(DataError, match="cannot be read: more than"):
        opened(kitti)
    path.unlink()
    with pytest.raises(DataError, match=r"1 of 2 images .* 0\.png.*labels/0\.txt"):
        opened(kitti)
    os.mkfifo(path)
    with pytest.raises(DataError, match="not a regular file"):
        opened(kitti)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": 3}, "no list 'images' of tables"),
        ({"images": []}, "has no images"),
        ({"images": [{"id": "7", "file_name": "a.png"}]}, r"images\[0\] has id='7'"),
        ({"images": [{"id": 7, "file_name": "../a.png"}]}, "not a file below"),
        ({"images": [{"id": 7, "file_name": "/etc/passwd"}]}, "not a file below"),
        ({"images": [{"id": 7, "file_name": "a"}] * 2}, r"images\[1\] has the id 7"),
        (
            {"images": [{"id": 7, "file_name": "a"}, {"id": 9, "file_name": "./a"}]},
            r"images\[1\] has the file_name of images\[0\]",
        ),
        ({"categories": [{"id": 1}]}, r"categories\[0\] has no name"),
        ({"categories": [{"id": 1, "name": ""}]}, r"categories\[0\]: .*1 to 100 characters"),
        (
            {"categories": [{"id": 5, "name": "dog"}, {"id": 5, "name": "cat"}]},
            r"categories\[1\] has the id 5",
        ),
        (
            {"categories": [{"id": 5, "name": "dog"}, {"id": 2, "name": "Dog"}]},
            r"categories\[1\] has the name 'Dog', and an earlier one 'dog'",
        ),
        ({"annotations": [{"image_id": 1, "category_id": 2}]}, "is of image 1"),
        ({"annotations": [{"image_id": 7, "category_id": 1}]}, "is of category 1"),
        ({"annotations": [{"image_id": 7, "category_id": True}]}, "category_id=True"),
        (
            {"annotations": [{"image_id": 7, "category_id": 2, "bbox": [1, 2, "3", 4]}]},
            "left, top, width and height",
        ),
        (
            {"annotations": [{"image_id": 7, "category_id": 2, "bbox": [1, 2, 1e9, 4]}]},
            "not a coordinate",
        ),
    ],
)
def test_a_coco_file_that_breaks_the_format_is_an_error(coco, changed, message):
    folder = coco("train", **changed)
    with pytest.raises(DataError, match=message):
        opened(folder)


def test_coco_files_have_to_be_there(coco, tmp_path):
    path = tmp_path / "annotations" / "instances_train2017.json"
    text = path.read_text()
    for broken in ("{", "[" * 5000, '{"images": ' + "1" * 5000 + "}"):
        path.write_text(broken)
        with pytest.raises(DataError, match="is not JSON"):
            opened(tmp_path)
    path.write_text(text)
    (tmp_path / "annotations" / "train.json").write_text(text)
    with pytest.raises(DataError, match=r"one file .*for train.* instances_train2017.json, train"):
        boxes.check_files(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="there is no folder train, images/train or images"):
        boxes.check_files(tmp_path)
    (tmp_path / "annotations" / "train.json").unlink()
    path.symlink_to(path)
    with pytest.raises(DataError, match=r"instances_train2017\.json cannot be read: .*links"):
        opened(tmp_path)


def test_folders_have_to_be_there(tmp_path, kitti):
    with pytest.raises(DataError, match=r"no folder images.*docs/data\.md"):
        boxes.check_files(tmp_path / "none")
    (tmp_path / "alone" / "train").mkdir(parents=True)
    for name in ("images", "labels"):
        (tmp_path / "alone" / "train" / name).mkdir()
    with pytest.raises(DataError, match="neither val nor validation"):
        boxes.check_files(tmp_path / "alone")
    save(kitti / "train", "0")
    (kitti / "train" / "labels" / "1.txt").write_text("")
    with pytest.raises(DataError, match="no box of any class"):
        opened(kitti)
    (kitti / "classes.txt").write_text("a\nA\n")
    with pytest.raises(DataError, match="each class once"):
        opened(kitti)


def test_options_of_other_images_are_refused(kitti):
    network = networks.build("detectnet-little")
    assert data.open_for(network, "boxes", str(kitti), "train", seed=0).samples == 2
    for options in (ImageOptions(cache_decoded=True), ImageOptions(stays_encoded=True)):
        with pytest.raises(UsageError, match="does not support"):
            opened(kitti, options=options)
