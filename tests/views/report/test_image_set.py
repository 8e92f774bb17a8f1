"""Pages of image sets: counts, pictures, hostile names, limits, and what is refused."""

import base64
import html
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cubemesh import prepare_images, sample_image_set
from cubemesh.cli import app
from cubemesh.data.prepare import picture_sample
from cubemesh.errors import UsageError
from cubemesh.views.report import image_set
from range_server import RangeServer

Image = pytest.importorskip("PIL.Image")
HOSTILE = '"><img src=x onerror=alert(1)>&amp;\x1b[2J{{7*7}}'


def write(path: Path, value: int = 0, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 255 - value)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 20 and 3 images, one of them damaged, whose names attack."""
    root = tmp_path_factory.mktemp("folder")
    for number in range(20):
        write(root / "plain" / f"{number:02}.png", 10 * number)
    write(root / HOSTILE / f"{HOSTILE.replace('/', '')}.jpg", size=(900, 300))
    write(root / HOSTILE / "grey.gif")
    (root / HOSTILE / "broken.jpg").write_bytes(b"\xff\xd8nothing")
    return root


def pictures(page: str) -> list[tuple[int, int]]:
    """The sizes of the pictures in a page."""
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)" width="(\d+)" height="(\d+)"', page)
    sizes = []
    for data, width, height in found:
        with Image.open(io.BytesIO(base64.b64decode(data)), formats=("JPEG",)) as image:
            image.load()
            assert image.size == (int(width), int(height))
            sizes.append(image.size)
    return sizes


def test_a_page_has_counts_and_pictures_of_each_class(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set"
    prepare_images(folder, target, processes=1, resize=64, validation=0.25)
    page = tmp_path / "set.html"
    done = CliRunner().invoke(app, ["prepare", str(target), "--list", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "Wrote" in done.stdout
    text = page.read_text()
    assert "15 for train, 5 for validation" in text
    assert "Prepared with --resize" in text
    assert "not an image that is read (1). skipped.tsv names them." in text
    assert text.count("<b>val</b>") >= 2
    assert len(pictures(text)) == 8 + 2


def test_a_page_of_a_folder_is_self_contained_and_names_are_only_text(folder: Path) -> None:
    text = image_set.render(sample_image_set(folder))
    assert "20 images" in text
    assert "no split" in text
    assert "Chosen for this page, and cannot be used: not an image that is read (1)." in text
    assert sorted(pictures(text)) == [(40, 30)] * 9 + [(128, 43)]
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "49" not in re.findall(r"<h2[^>]*>([^<]*)", text)[0]
    assert html.escape('"><img src=x', quote=False).replace('"', "&#34;") in text
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r'(?:src|href)="(?!data:)', text)


def test_a_page_stays_below_its_limits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in range(6):
        for number in range(3):
            write(tmp_path / f"c{label}" / f"{number}.png", number)
    monkeypatch.setattr(picture_sample, "MOST_PICTURES", 4)
    monkeypatch.setattr(image_set, "MOST_CLASSES", 5)
    sample = sample_image_set(tmp_path)
    assert sorted(sample.pictures) == [0, 1, 3, 5]
    assert all(len(each) == 1 for each in sample.pictures.values())
    text = image_set.render(sample)
    assert "2 of 6 classes have no picture here" in text
    assert "The first 5 classes are shown." in text
    assert text.count("<section") == 5
    monkeypatch.setattr(picture_sample, "MOST_BYTES", 1000)
    small = sample_image_set(folder)
    assert small.shortened
    assert sum(len(p.jpeg) for each in small.pictures.values() for p in each) <= 1000


def test_the_same_set_gives_the_same_sample(folder: Path) -> None:
    assert sample_image_set(folder, per_class=3) == sample_image_set(folder, per_class=3)
    names = [picture.name for picture in sample_image_set(folder, per_class=3).pictures[1]]
    assert names == ["plain/00.png", "plain/09.png", "plain/19.png"]


def test_what_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    def refusal(*arguments: str) -> str:
        error = CliRunner().invoke(app, ["prepare", str(folder), *arguments]).exception
        assert isinstance(error, UsageError)
        return str(error)

    assert "belongs to --list" in refusal("--page", "set.html")
    assert "ends in .html" in refusal("--list", "--page", str(tmp_path / "set.png"))
    missing = str(tmp_path / "nowhere" / "set.html")
    assert "cannot be written" in refusal("--list", "--page", missing)
    with pytest.raises(UsageError, match="1 picture"):
        sample_image_set(folder, per_class=0)


def test_the_json_names_the_page(folder: Path, tmp_path: Path) -> None:
    page = str(tmp_path / "set.html")
    found = CliRunner().invoke(app, ["prepare", str(folder), "--list", "--page", page, "--json"])
    assert json.loads(found.stdout)["page"] == page


def test_a_page_of_a_set_at_a_url(folder: Path, tmp_path: Path) -> None:
    prepare_images(folder, tmp_path / "set", processes=1, validation=0.25)
    local = sample_image_set(tmp_path / "set")
    with RangeServer(tmp_path) as server:
        remote = sample_image_set(f"{server.url}/set")
    assert remote.pictures == local.pictures
    assert {p.split for p in remote.pictures[1]} == {"train", "validation"}
    assert "5 for validation" in image_set.render(remote)
