import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.untrusted import MOST_DEPTH, clean, parse_json, quoted


@given(st.text(), st.integers(0, 8))
def test_clean_text_steers_no_terminal_and_can_be_written(text, most):
    cleaned = clean(text)
    assert len(cleaned) == len(text)
    assert all(ord(c) >= 32 or c in "\t\n" for c in cleaned)
    assert not any("\x7f" <= c <= "\x9f" or "\u202a" <= c <= "\u202e" for c in cleaned)
    cleaned.encode("utf-8")
    assert clean(text, most)[:most] == cleaned[:most]


def test_long_text_is_cut():
    assert len(clean("x" * 10**6, 100)) < 140
    assert len(quoted("\x1b" * 10**6)) < 140
    assert quoted(10**5000) == quoted(-(10**5000))


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), st.lists))
def test_json_is_parsed(value):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        b"\xff",
        "[" * 100_000,
        "[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1),
        '{"a":' * 100_000,
        "9" * 5000,
        str(2**64),
        '"\\ud800"',
        '{"\\udfff": 1}',
    ],
)
def test_what_cannot_be_meant_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
    parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)
