"""The kernel's small formats are read, and what is not in them comes back as None."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cubemesh.machines.files import BLANKS, Tree, cpu_list, meminfo_bytes, size_bytes, whole_number


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        (" 0-1,4-5\n", (0, 1, 4, 5)),
        ("", ()),
        (None, None),
        ("0-", None),
        ("a-b", None),
        ("3-1", ()),
        ("0\x1f", None),
    ],
)
def test_cpu_list(text, numbers):
    assert cpu_list(text) == numbers


@given(st.sets(st.integers(0, 4096), max_size=40))
def test_cpu_list_round_trip(cpus):
    assert cpu_list(",".join(map(str, sorted(cpus, reverse=True)))) == tuple(sorted(cpus))


@given(st.integers(0, 1000), st.integers(0, 300))
def test_cpu_list_range_has_both_ends(first, more):
    assert cpu_list(f"{first}-{first + more}") == tuple(range(first, first + more + 1))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32K", 32 << 10),
        ("36608K", 36608 << 10),
        ("2M", 2 << 20),
        ("16000000 kB", 16000000 << 10),
        ("512", 512),
        ("-1K", None),
        ("K", None),
        ("", None),
        (None, None),
    ],
)
def test_size_bytes(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (" -7\t\r\n", -7),
        ("0\x1f", None),
        ("\xa01", None),
        ("１", None),
        ("+1", None),
        ("1_0", None),
        ("9" * 31, None),
        ("", None),
        (None, None),
    ],
)
def test_whole_number(text, number):
    assert whole_number(text) == number


@given(st.text())
@example("0\x1f")
def test_parsers_never_raise(text):
    numbers = cpu_list(text)
    assert numbers is None or all(n >= 0 for n in numbers)
    size = size_bytes(text)
    assert size is None or size >= 0
    number = whole_number(text)
    assert number is None or int(text.strip(BLANKS)) == number


def test_a_tree_reads_below_its_root_only(make_tree):
    tree = make_tree({"/proc/meminfo": "MemTotal:  1024 kB\n", "/a/node10": "", "/a/node9": ""})
    assert meminfo_bytes(tree, "MemTotal") == 1 << 20
    assert meminfo_bytes(tree, "SwapTotal") is None
    assert tree.text("/proc/cpuinfo") is None
    assert tree.numbered("/a", "node") == [9, 10]
    assert tree.numbered("/b", "node") == []
    assert not tree.live
    assert Tree().live


def test_binary_content_and_folders_never_raise(make_tree):
    tree = make_tree({"/proc/meminfo": b"\xff\x00\xfeMemTotal: \xff kB", "/d/file": ""})
    assert meminfo_bytes(tree, "MemTotal") is None
    assert tree.text("/d") is None


def test_the_same_gap_is_noted_once(make_tree):
    tree = make_tree()
    tree.missing("clock", "no file")
    tree.missing("clock", "no file")
    assert [(u.what, u.why) for u in tree.unknown] == [("clock", "no file")]
