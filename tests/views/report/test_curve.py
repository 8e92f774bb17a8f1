from __future__ import annotations

import math
import re

import numpy as np
import pytest

from cubemesh.views.charts.thinning import most_points
from cubemesh.views.report.curve import HEIGHTS, curve

TOP, COLUMNS = 2, 256


def noise(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return np.linspace(2, 2 + COLUMNS, count), draw.uniform(TOP, 62, count)


def path_of(letters: str) -> str:
    """As `pathOf` in report.js."""
    x, stretches = 0, [[]]
    for letter in letters:
        if letter == "|":
            stretches.append([])
        if letter in " |":
            x += 1
        else:
            stretches[-1].append(f"{x} {HEIGHTS.index(letter) + TOP}")
    return "".join(f"M{'L'.join(s)}{'h1' if len(s) == 1 else ''}" for s in stretches)


def written(attribute: str) -> tuple[str, str]:
    found = re.fullmatch(r' (d|data-curve)="([^"]*)"', attribute)
    assert found is not None
    return found[1], found[2]


@pytest.mark.parametrize("parted", [False, True])
def test_letters_are_the_same_path_and_shorter(parted):
    x, y = noise(10_000)
    if parted:
        y[(x > 50) & (x < 90)] = math.nan
        y[(x >= 91) & (x < 120)] = math.nan
    (as_path, path), (as_letters, letters) = (
        written(curve(x, y, top=TOP, letters=choice)) for choice in (False, True)
    )
    assert (as_path, as_letters) == ("d", "data-curve")
    assert path_of(letters) == path
    assert 2 * len(letters) < len(path)
    assert path.count("M") == (3 if parted else 1)


def test_a_curve_has_no_more_points_than_can_be_seen():
    for count in (100, 1_000, 100_000):
        _, path = written(curve(*noise(count), top=TOP))
        assert len(re.findall("[ML]", path)) <= min(count, most_points(COLUMNS + 1))


def test_a_short_curve_has_tenths_of_pixels_and_no_letters():
    name, path = written(curve(np.array([2.0, 9.26]), np.array([3.0, 4.0]), top=TOP, letters=True))
    assert (name, path) == ("d", "M2.0 3.0L9.3 4.0")


def test_a_point_between_two_gaps_is_a_dash():
    _, path = written(curve(np.arange(2.0, 7.0), np.array([3, math.nan, 5, math.nan, 7]), top=TOP))
    assert path == "M2.0 3.0h1M4.0 5.0h1M6.0 7.0h1"


def test_every_height_of_a_panel_has_a_letter():
    x = np.repeat(np.arange(2.0, 63.0), 10)
    _, letters = written(curve(x, x, top=TOP, letters=True))
    assert list(dict.fromkeys(letters.strip().replace(" ", ""))) == list(HEIGHTS[:61])
