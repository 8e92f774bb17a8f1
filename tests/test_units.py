"""Quantities are written so that people read them right, and read back as they were meant."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.units import (
    format_bytes,
    format_count,
    format_interval,
    format_number,
    format_quantity,
    format_seconds,
    parse_duration,
    parse_size,
)

quick = settings(deadline=None, max_examples=60)
ordinary = st.floats(1e-9, 1e15)


def number_in(text: str) -> float:
    return float(text.replace(",", "").replace("×", "").split()[0])


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1234567, "1,234,567"), (-1000, "-1,000")]
)
def test_counts(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (12, "12"),
        (2.30, "2.3"),
        (0.0312345, "0.0312"),
        (999.6, "1,000"),
        (9.996, "10"),
        (1234567, "1,230,000"),
        (-5.5, "-5.5"),
        (1e21, "1,000,000,000,000,000,000,000"),
        (1.5e-7, "0.00000015"),
        (math.nan, "not a number"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
    ],
)
def test_numbers(value, text):
    assert format_number(value) == text


@quick
@given(st.floats(-1e300, 1e300), st.integers(1, 8))
def test_a_number_is_rounded_to_its_digits_and_never_scientific(value, digits):
    text = format_number(value, digits)
    assert re.fullmatch(r"-?\d{1,3}(,\d{3})*(\.\d+)?", text)
    assert number_in(text) == pytest.approx(
        value, rel=0.5 * 10 ** (1 - digits) * 1.0001, abs=1e-323
    )
    assert len(text.replace(",", "").replace(".", "").strip("-0")) <= digits


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7.8e14, "FLOP/s", "780 TFLOP/s"),
        (999.96e9, "FLOP/s", "1 TFLOP/s"),
        (1.8e19, "FLOP", "18 EFLOP"),
        (25e9, "B/s", "25 GB/s"),
        (1900.4, "samples/s", "1,900 samples/s"),
        (2.3, "×", "2.3×"),
        (0.4567, "×", "0.46×"),
        (0.04567, "×", "0.046×"),
        (0, "×", "0×"),
        (82.14, "%", "82.1 %"),
        (0.0051, "W", "5.1 mW"),
        (1200, "W", "1.2 kW"),
        (0.0123, "s", "12.3 ms"),
        (3 * 2**29, "bytes", "1.5 GiB"),
        (0, "FLOP/s", "0 FLOP/s"),
        (0.5, "FLOP/s", "0.5 FLOP/s"),
        (4, "", "4"),
        (math.nan, "W", "not a number W"),
    ],
)
def test_quantities(value, unit, text):
    assert format_quantity(value, unit) == text


@quick
@given(ordinary, st.integers(1, 6))
def test_a_prefix_multiplies_by_its_factor(value, digits):
    text = format_quantity(value, "FLOP/s", digits)
    prefix = text.split()[1].removesuffix("FLOP/s")
    factor = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[prefix]
    assert number_in(text) * factor == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits))
    assert number_in(text) < 1000


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (2**20 - 1, "1 MiB"),
        (1016 * 2**20, "1,016 MiB"),
        (8 * 2**30, "8 GiB"),
        (139.7 * 2**30, "140 GiB"),
        (-(2**30), "-1 GiB"),
        (5000 * 2**40, "5,000 TiB"),
    ],
)
def test_bytes(size, text):
    assert format_bytes(size) == text


@quick
@given(st.integers(0, 2**60), st.integers(3, 9))
def test_formatted_bytes_parse_to_the_same_value(size, digits):
    # Half a unit in the last digit shown, and half a byte that reading rounds away.
    allowed = 0.5001 * 10 ** (1 - digits) * size + 0.5
    assert abs(parse_size(format_bytes(size, digits)) - size) <= allowed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.5e-7, "350 ns"),
        (1.2e-5, "12 µs"),
        (0.00123, "1.23 ms"),
        (0.99996, "1 s"),
        (4.52, "4.52 s"),
        (59.96, "1 min"),
        (90, "1 min 30 s"),
        (3599.6, "1 h"),
        (7500, "2 h 5 min"),
        (86399, "1 day"),
        (12.34 * 86400, "12.3 days"),
        (-3, "-3 s"),
        (math.inf, "infinite s"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@quick
@given(st.floats(1e-9, 1e9))
def test_formatted_seconds_parse_to_the_same_value(seconds):
    assert parse_duration(format_seconds(seconds)) == pytest.approx(seconds, rel=0.009)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((2170.3, 2156.2, 2184.0), "2,170 ± 14"),
        ((2170.3, 2150.0, 2184.0), "2,170 ± 20"),
        ((10, 9.02, 10.98), "10.0 ± 1.0"),
        ((0.1, 0.0999, 0.1001), "0.10000 ± 0.00010"),
        ((123456, 23456, 200000, "samples/s"), "120,000 ± 100,000 samples/s"),
        ((0.01234, 0.0119, 0.0127, "s"), "12.3 ± 0.4 ms"),
        ((7.81e14, 7.7e14, 7.9e14, "FLOP/s"), "781 ± 11 TFLOP/s"),
        ((3 * 2**29, 2**30, 2**31, "B"), "1.5 ± 0.5 GiB"),
        ((2.3, 2.29, 2.31, "×"), "2.30 ± 0.01×"),
        ((1.9373, 1.9342, 1.9404, "×"), "1.94 ± 0.01×"),
        ((19.123, 19.1, 19.2, "×"), "19.12 ± 0.08×"),
        ((25.4, 23.1, 27.7, "× the speed"), "25.4 ± 2.3 × the speed"),
        ((0.01234, 0.01233, 0.01235, "×"), "0.012 ± 0.001×"),
        ((1.9373, 1.9373, 1.9373, "×"), "1.94 ± 0×"),
        ((0.2345, 0.0456, 3.4567, "×"), "0.23× (0.046 to 3.46)"),
        ((1.107, 1.002, 1.223, "×"), "1.11× (1.002 to 1.22)"),
        ((0.8996, 0.81, 0.99996, "× the speed"), "0.9× (0.81 to 0.99996) the speed"),
        ((1.107, 0.998, 1.216, "×"), "1.11 ± 0.11×"),
        ((3, -2, 8), "3 ± 5"),
        ((210, 84, 525, "samples/s"), "210 (84 to 525) samples/s"),
        ((459, 1e-5, 2e10, "images/s"), "459 (uncertain by 100× or more) images/s"),
        ((0.0021, 0.0001, 0.01, "s"), "2.1 (0.1 to 10) ms"),
        ((5, 5, 5), "5 ± 0"),
        ((1900.4, None, None, "samples/s"), "1,900 samples/s"),
        ((5, 1, math.inf), "5 ± infinite"),
    ],
)
def test_intervals(interval, text):
    assert format_interval(*interval) == text


@quick
@given(ordinary, st.floats(1e-6, 2.0))
def test_an_interval_shows_value_and_uncertainty_to_the_same_place(value, share):
    half = value * share
    text = format_interval(value, value - half, value + half / 2)
    shown, uncertainty = (part.replace(",", "") for part in text.split(" ± "))
    assert len(shown.partition(".")[2]) == len(uncertainty.partition(".")[2])
    assert float(uncertainty) == pytest.approx(half, rel=0.13)
    assert float(shown) == pytest.approx(value, abs=half * 0.51)
    assert 1 <= len(uncertainty.replace(".", "").strip("0")) <= 2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 * 2**30),
        ("1GiB", 2**30),
        ("512k", 512 * 1024),
        ("512K", 512 * 1024),
        ("1.5 GB", 1_500_000_000),
        (".5m", 2**19),
        ("2tib", 2**41),
        ("1P", 2**50),
        (" 4096 ", 4096),
        ("4096b", 4096),
        ("1,016 MiB", 1016 * 2**20),
        ("0", 0),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@quick
@given(
    st.integers(0, 10**6), st.sampled_from("kMGTP"), st.sampled_from(["", "B", "iB"]), st.booleans()
)
def test_a_size_is_its_number_times_its_unit(number, prefix, ending, spaced):
    base = 1000 if ending == "B" else 1024
    text = f"{number}{' ' * spaced}{prefix}{ending}"
    assert parse_size(text) == number * base ** ("kMGTP".index(prefix) + 1)


@pytest.mark.parametrize("text", ["", "G", "8X", "-1", "1,5G", "nan", "1e9", "8 G B", "1_000", "٣"])
def test_an_invalid_size_is_a_usage_error(text):
    with pytest.raises(UsageError, match="8G") as raised:
        parse_size(text)
    assert f"'{text}'" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1 min 30 s", 90),
        ("250ms", 0.25),
        ("2 days", 172800),
        ("90", 90),
        ("1.5h", 5400),
        ("12.3 µs", 12.3e-6),
        ("12.3 \N{GREEK SMALL LETTER MU}s", 12.3e-6),
        ("1D 1H", 90000),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-15)


@quick
@given(st.integers(0, 10**6), st.integers(0, 59), st.floats(0, 59))
def test_a_duration_is_the_sum_of_its_parts(hours, minutes, seconds):
    text = f"{hours}h {minutes}min {seconds:.6f}s"
    assert parse_duration(text) == pytest.approx(hours * 3600 + minutes * 60 + seconds, abs=1e-6)


@pytest.mark.parametrize(
    "text", ["", "m", "8X", "-1", "5m5m", "30m1h", "5s x", "1e3", "s5", "5 5s"]
)
def test_an_invalid_duration_is_a_usage_error(text):
    with pytest.raises(UsageError, match="1h30m") as raised:
        parse_duration(text)
    assert f"'{text}'" in str(raised.value)
