"""Colours of the pages: text has a contrast of 4.5 or more (WCAG 2.1, 1.4.3) in light and dark."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cubemesh.views.theme import DARK, LIGHT


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "soft", "accent", "caution", "fault"])
@pytest.mark.parametrize("ground", ["paper", "wash"])
def test_text_is_legible(colours: Mapping[str, str], text: str, ground: str) -> None:
    assert contrast(colours[text], colours[ground]) >= 4.5


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_the_text_of_a_main_button_is_legible(colours: Mapping[str, str]) -> None:
    assert contrast(colours["paper"], colours["accent"]) >= 4.5


def test_black_on_white_has_the_largest_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
