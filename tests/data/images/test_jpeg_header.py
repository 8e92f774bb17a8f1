"""What the header of a JPEG says, and what is left to the decoder on the host."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.data.images.jpeg_header import JpegHeader, plain_header

Image = pytest.importorskip("PIL.Image")


def jpeg(mode: str = "RGB", **saving: object) -> bytes:
    image, file = Image.new(mode, (40, 30), 90), io.BytesIO()
    image.save(file, "JPEG", **saving)
    return file.getvalue()


@pytest.mark.parametrize(
    "saving", [{}, {"progressive": True}, {"subsampling": 0}, {"comment": b"\xff\xc0" * 20}]
)
def test_a_plain_jpeg_tells_its_size_and_colours(saving: dict[str, object]) -> None:
    progressive = "progressive" in saving
    assert plain_header(jpeg(**saving)) == JpegHeader(40, 30, 3, progressive)
    grey = plain_header(jpeg("L", **{k: v for k, v in saving.items() if k != "subsampling"}))
    assert grey == JpegHeader(40, 30, 1, progressive)
    assert (grey.pixels, grey.mode) == (1200, "L")


def test_bytes_may_fill_the_space_between_segments() -> None:
    data = jpeg()
    assert plain_header(data[:2] + b"\xff" * 5 + data[2:]) == JpegHeader(40, 30, 3)


RGB_BY_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
FRAME = jpeg().index(b"\xff\xc0")


def changed(at: int, to: bytes) -> bytes:
    data = jpeg()
    return data[:at] + to + data[at + len(to) :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff\xd9",
        jpeg("CMYK"),
        jpeg()[:-2],
        jpeg()[:2] + RGB_BY_ADOBE + jpeg()[2:],
        changed(FRAME + 1, b"\xc3"),  # lossless
        changed(FRAME + 1, b"\xc9"),  # arithmetic
        changed(FRAME + 4, b"\x0c"),  # 12 bits
        changed(FRAME + 5, b"\0\0"),  # a height that comes later
        changed(2, b"\0"),
        b"\xff\xd8\xff\xc0\x00\x04\x08\x00\xff\xda\x00\x02\xff\xd9",
    ],
)
def test_all_else_is_left_to_the_host(data: bytes) -> None:
    assert plain_header(data) is None


def test_colours_named_r_g_b_are_no_ycbcr() -> None:
    data = bytearray(jpeg())
    data[FRAME + 10 : FRAME + 19 : 3] = b"RGB"
    assert plain_header(bytes(data)) is None


@given(st.binary(max_size=200), st.integers(0, 700), st.integers(1, 20))
def test_whatever_stands_there_it_is_a_header_or_none(noise: bytes, at: int, length: int) -> None:
    whole = jpeg()
    for data in (
        b"\xff\xd8" + noise + b"\xff\xd9",
        whole[:at] + whole[at + length :],
        whole[:at] + noise + whole[at:],
    ):
        header = plain_header(data)
        assert header is None or header.colours in (1, 3)


def test_it_agrees_with_pillow_about_real_sizes() -> None:
    rng = np.random.default_rng(0)
    for width, height in rng.integers(1, 300, (20, 2)).tolist():
        file = io.BytesIO()
        Image.new("RGB", (width, height)).save(file, "JPEG")
        assert plain_header(file.getvalue()) == JpegHeader(width, height, 3)


def comment(content: bytes) -> bytes:
    return b"\xff\xfe" + (2 + len(content)).to_bytes(2) + content


def hidden(marker: int) -> bytes:
    """A JPEG of 40×30 with a marker in front that has no length, and two comments. Who takes the
    first comment's name for that length lands in the second, at a frame of 8×8."""
    small = bytearray(jpeg()[FRAME : FRAME + 19])
    small[5:9] = b"\0\x08\0\x08"
    front = jpeg()[:2] + bytes((0xFF, marker)) + comment(bytes(60_000))
    lands = 2 + 2 + 0xFFFE
    front += comment(bytes(lands - len(front) - 4) + bytes(small) + b"\xff\xda")
    return front + jpeg()[2:]


@pytest.mark.parametrize("marker", range(0xD0, 0xDA))
def test_markers_without_a_length_are_left_to_the_host(marker: int) -> None:
    assert plain_header(hidden(marker)) is None
    with Image.open(io.BytesIO(hidden(marker))) as image:
        assert image.size == (40, 30)


def test_a_second_frame_is_left_to_the_host() -> None:
    frame = jpeg()[FRAME : FRAME + 19]
    assert plain_header(jpeg()[:FRAME] + frame + jpeg()[FRAME:]) is None


def test_a_frame_has_as_many_colours_as_it_says() -> None:
    assert plain_header(changed(FRAME + 9, b"\x01")) is None
