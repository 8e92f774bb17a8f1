"""Data of a user's own as a source: samples, splits, order, and what is wrong with them."""

import os
import sys
import textwrap

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.data import input_threads, open_for, own
from cubemesh.data.feed import Feed, in_order
from cubemesh.data.own.source import OwnSamples, OwnStream
from cubemesh.data.own.stages import collate, items
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.littlecnn import little_cnn
from cubemesh.schema.own_network import OwnData
from cubemesh.user_code import UserCodeError

NETWORK = little_cnn(16, 10)
CODE = """
import os, sys
import numpy as np

class Numbers:
    samples = 40
    def __len__(self): return self.samples
    def __getitem__(self, n): return np.full((3, 16, 16), n, np.float64), n % 10

data = Numbers()
def split(split): return [data[39]] * (20 if split == "train" else 3)
def folder(path): return [(np.zeros((3, 16, 16)), int(open(path).read()))] * 12
def generator():
    for n in range(5): yield data[n]
class Sized:
    def __len__(self): return 12
    def __iter__(self): return iter(Numbers()[n] for n in range(12))
def sized(split): return Sized()
class Short(Sized):
    def __len__(self): return 20
def short(split): return Short()
def empty(split): return iter(())
once = iter([data[0]] * 3)
pixels = [(np.full((3, 16, 16), 255, np.uint8), np.int64(9))] * 12

def one(image, label): return [(image, label)] * 12
GOOD = np.zeros((3, 16, 16))
last = one(np.zeros((16, 16, 3)), 1)
small = one(np.zeros((3, 8, 8)), 1)
integers = one(np.zeros((3, 16, 16), np.int32), 1)
text = one("image", 1)
label = one(GOOD, 10)
minus = one(GOOD, -1)
fraction = one(GOOD, 0.5)
several = one(GOOD, [1, 2])
single = [GOOD] * 12
mappings = [{"image": GOOD, "label": 1}] * 12
few = [data[0]] * 9
none = []
number = 3

class Raises(Numbers):
    def __getitem__(self, n): raise KeyError("lost")
class Exits(Numbers):
    def __getitem__(self, n): sys.exit(2)
class Forks(Numbers):
    def __getitem__(self, n):
        if (child := os.fork()): os.waitpid(child, 0)
        return super().__getitem__(n)
def fails(): raise OSError("no disk")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The module of a user."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(textwrap.dedent(CODE))
    before = sys.path.copy()
    yield path
    sys.path[:] = before
    sys.modules.pop("mine", None)


@pytest.fixture
def opened(file):
    """A function that opens an object of the module."""

    def open_(name, split="train", network=NETWORK, path=None):
        data = OwnData(source=f"{file}:{name}", folder=str(file.parent))
        return open_for(network, data.name, path, split, seed=0, own_data=data)

    return open_


def labels(source, indices):
    return source.batch(np.array(indices)).labels.tolist()


def test_a_map_style_data_set_is_a_source_whose_tenths_are_for_validation(opened):
    train, validation = opened("data"), opened("data", "validation")
    assert (train.samples, validation.samples, train.classes) == (36, 4, 10)
    assert labels(train, [0, 8, 9]) == [0, 8, 0], "sample 9 is the tenth"
    assert labels(validation, [0, 3]) == [9, 9]
    batch = train.batch(np.array([2]))
    assert batch.images.dtype == np.float32
    assert batch.images.mean() == 2
    with pytest.raises(IndexError):
        train.batch(np.array([36]))


def test_a_function_may_take_the_split_and_the_path(opened, tmp_path):
    assert opened("split").samples == 20
    assert opened("split", "validation").samples == 3
    (tmp_path / "label").write_text("7")
    assert labels(opened("folder", path=str(tmp_path / "label")), [0]) == [7]
    with pytest.raises(Unsupported, match="takes no argument `path`"):
        opened("data", path=str(tmp_path))


def test_bytes_are_divided_by_255(opened):
    assert opened("pixels").batch(np.array([0])).images.max() == pytest.approx(1)


def test_pictures_get_their_channels_first(opened, file):
    image = pytest.importorskip("PIL.Image")
    source = opened("data")
    pictures = [image.new("RGB", (16, 16), (255, 0, 51))] * 40
    source.data = [(picture, 1) for picture in pictures]
    red, green, blue = source.batch(np.array([0])).images[0]
    assert (red.min(), green.max(), blue.max()) == pytest.approx((1, 0, 0.2))


def test_threads_give_the_batches_that_none_give(opened):
    plain, threaded = (Feed(opened("data"), 6, 3, threads=n) for n in (0, 2))
    for _ in range(8):
        assert next(plain).labels.tolist() == next(threaded).labels.tolist()
    threaded.close()
    assert input_threads("mine.py:data", None, 4) == 4


def test_tokens_are_integers_of_the_vocabulary_and_labels_may_be_padding(opened):
    network = gpt("gpt2", 8, 50, width=16, depth=1, heads=2)
    source = opened("data", network=network)
    source.data = [(np.arange(8), np.where(np.arange(8) < 6, 1, -1))] * 40
    assert source.batch(np.array([0, 1])).inputs[0].tolist() == [list(range(8))] * 2
    assert source.tokens_per_sample == 6
    source.data = [(np.full(8, 50), np.ones(8, int))] * 40
    with pytest.raises(UserCodeError, match=r"value 50; .* has 50 tokens, so it takes 0 to 49"):
        source.batch(np.array([0]))


def test_a_category_is_a_row_of_the_table_of_its_place(opened):
    network = networks.build("dlrm-small", vocabulary=100, hidden=4)
    numbers, categories = network.inputs
    sizes = np.array(categories.vocabularies)
    assert len(set(sizes)) > 1
    source = opened("data", network=network)
    row = np.zeros(numbers.shape, np.float32)
    source.data = [(row, sizes - 1, 1)] * 40
    assert source.batch(np.array([0])).inputs[1].tolist() == [(sizes - 1).tolist()]
    place = int(sizes.argmin())
    source.data = [(row, np.where(np.arange(len(sizes)) == place, sizes, 0), 1)] * 40
    with pytest.raises(UserCodeError, match=rf"in place {place}, whose table in .* rows"):
        source.batch(np.array([0]))


def test_it_has_no_boxes(opened):
    with pytest.raises(UsageError, match=r"has no boxes .*, and detectnet-little needs them"):
        opened("data", network=networks.build("detectnet-little"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("last", r"sample 0, field 0 \(image\) has the shape 16x16x3; .* 3x16x16. Its channels"),
        ("small", r"field 0 \(image\) has the shape 3x8x8; little-cnn takes 3x16x16\.$"),
        ("integers", "values of type int32; little-cnn takes floating-point numbers, or uint8"),
        ("text", r"field 0 \(image\) is a str; it must be numbers"),
        ("label", r"field 1 \(label\) has the value 10; .* has 10 classes, so it takes 0 to 9"),
        ("minus", r"field 1 \(label\) has the value -1"),
        ("fraction", "values of type float64; little-cnn takes integers"),
        ("several", r"has the shape 2; little-cnn takes one integer"),
        ("single", "sample 0 is a ndarray; little-cnn takes a tuple of 2: image, label"),
        ("mappings", "sample 0 is a dict"),
        ("Raises", r"sample 0 raised KeyError: .*lost.* \(mine.py, line \d+\)"),
        ("Exits", r"sample 0 called sys.exit\(2\)"),
        ("Forks", "forked a process that returned from the data set"),
    ],
)
def test_a_sample_that_does_not_fit_is_named_with_its_field(opened, name, words):
    source = opened(name)
    pid = os.getpid()
    with pytest.raises(UserCodeError, match=words):
        source.batch(np.array([0]))
    assert os.getpid() == pid


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("few", "validation", "has 9 samples, and none for validation"),
        ("none", "train", "has 0 samples"),
        ("number", "train", "gives an object of type int; it must be a data set"),
        ("fails", "train", r"making the data raised OSError: no disk \(mine.py"),
        ("missing", "train", "there is no missing in mine.py"),
    ],
)
def test_what_is_no_data_is_said(opened, name, split, words):
    with pytest.raises(UserCodeError, match=words):
        opened(name, split)


def test_an_error_in_a_thread_reaches_the_step(opened):
    feed = Feed(opened("Raises"), 4, 0, threads=2)
    with pytest.raises(UserCodeError, match="lost"):
        next(feed)


def test_an_iterable_keeps_its_order_and_begins_again(opened):
    source = opened("generator")
    assert isinstance(source, OwnStream)
    feed = Feed(source, 4, 0, threads=source.threads(None))
    assert [next(feed).labels.tolist() for _ in range(3)] == [
        [0, 1, 2, 3],
        [4, 0, 1, 2],
        [3, 4, 0, 1],
    ]
    feed.close()
    assert labels(source, [3, 4]) == [3, 4], "an index is sought from the beginning"
    with pytest.raises(Unsupported, match=r"input_threads=2: mine.py:generator is an iterable"):
        source.threads(2)
    with pytest.raises(Unsupported, match="takes no argument `split`"):
        opened("generator", "validation")


def test_an_iterable_with_a_length_has_epochs(opened):
    source = opened("sized")
    feed = Feed(source, 5, 0, epochs=2)
    assert [b.labels.tolist() for b in feed] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] * 2
    whole = [b.labels.tolist() for b in in_order(opened("sized", "validation"), 8)]
    assert whole == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 0, 1]]
    with pytest.raises(UserCodeError, match="ended after 12 of its samples; its length is 20"):
        opened("short").batch(np.arange(20))


@pytest.mark.parametrize("name", ["empty", "once"])
def test_an_iterable_that_does_not_begin_again_is_said(opened, name):
    with pytest.raises(UserCodeError, match="does not begin again after its end"):
        opened(name).batch(np.arange(4))


def test_stages_take_samples_or_collate_them(opened, monkeypatch):
    last = items(opened("last"), NETWORK, one=False)
    last.batch(np.arange(4))  # unchecked: it is dropped
    data = opened("data")
    held = collate(data, NETWORK, 4)
    with monkeypatch.context() as patch:
        patch.setattr(type(data.data), "__getitem__", None)
        assert labels(held, [1, 0, 3, 2]) == [1, 0, 3, 2]
    stream = items(opened("generator"), NETWORK, one=False)
    feed = Feed(stream, 4, 0)
    next(feed), next(feed)
    assert stream.tokens_per_sample is None
    assert labels(collate(opened("sized"), NETWORK, 4), [0, 3]) == [0, 3]


def test_a_data_loader_is_used_as_it_is(opened, file):
    torch = pytest.importorskip("torch")

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 14

        def __getitem__(self, n):
            return torch.full((3, 16, 16), float(n)), n % 10

    sys.modules["mine"].loader = lambda split: torch.utils.data.DataLoader(
        Numbers(), batch_size=4, collate_fn=None
    )
    source = opened("loader")
    assert isinstance(source, OwnStream)
    assert source.samples == 14
    feed = Feed(source, 6, 0, threads=source.threads(None), epochs=1)
    assert feed.threads == 0
    assert [b.labels.tolist() for b in feed] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 0, 1]]
    with pytest.raises(Unsupported, match="whose num_workers prepare its batches"):
        source.threads(1)
    one = items(source, NETWORK, one=True)
    assert isinstance(one, OwnSamples)
    one.batch(np.arange(3))
    assert labels(collate(source, NETWORK, 4), [0, 1, 2, 3]) == [0, 1, 2, 3]
    taken = items(source, NETWORK, one=False)
    assert isinstance(taken, OwnStream)
    taken.batch(np.arange(6))
    sys.modules["mine"].loader = lambda: torch.utils.data.DataLoader(
        [(torch.zeros(3, 8, 8), 1)] * 8, batch_size=4
    )
    with pytest.raises(UserCodeError, match=r"batch 0, field 0 \(image\) has the shape 4x3x8x8"):
        opened("loader").batch(np.arange(4))


def test_code_that_no_command_named_is_refused(file):
    with pytest.raises(UsageError, match="runs only where a command names it"):
        open_for(NETWORK, "mine.py:data", None, "train", seed=0)
    found = own.located([f"{file}:data", "digits", f"{file}:data"])
    assert [one.name for one in found] == ["mine.py:data"]
    with own.named(found):
        assert own.get("elsewhere/mine.py:data") == found[0]
        with (
            pytest.raises(UsageError, match="have the same name"),
            own.named([OwnData(source="/other/mine.py:data", folder="/other")]),
        ):
            pass
    assert own.find("mine.py:data") is None
    with pytest.raises(UsageError, match="there is no file"):
        own.located(["none.py:data"])
