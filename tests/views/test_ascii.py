"""Output in encodings that lack characters of tables and findings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cubemesh
import install_verbs
from cubemesh.views.ascii import REPLACEMENTS, to_ascii


def test_replacements_keep_the_meaning():
    assert to_ascii("19.9 ± 0.2 µs · 3×224 – ≥ 5 … m² ᵀ ä") == (
        "19.9 +- 0.2 us - 3x224 - >= 5 ... m2 T a"
    )
    assert to_ascii("中") == "?"
    assert all(key and value.isascii() for key, value in REPLACEMENTS.items())


def test_each_character_of_the_source_has_a_replacement():
    """A question mark loses the meaning; what is printed is written somewhere in the source."""
    sources = Path(cubemesh.__file__).parent.rglob("*.py")
    used = set("".join(path.read_text(encoding="utf-8") for path in sources))
    assert [c for c in sorted(used) if not c.isascii() and to_ascii(c) == "?"] == []


VERBS = {
    "help": ("run", "--help"),
    "table": ("experiments",),
    "layers": ("networks", "little-cnn"),
    "error": ("networks", "nöt-there"),
    "json": ("experiments", "--json"),
}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_a_stream_without_utf8_gets_replacements(words: tuple[str, ...], encoding: str):
    code, shown = install_verbs.run(words, encoding)
    assert code == (2 if words == VERBS["error"] else 0), shown
    assert not re.search(r"Traceback|UnicodeEncodeError|\\u[0-9a-f]{4}\w* ", shown)


def test_an_ascii_locale():
    """Files are read as UTF-8 whatever the locale is."""
    done = subprocess.run(
        [sys.executable, "-m", "cubemesh", "published", "resnet-50", "--limit", "3"],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"ResNet-50" in done.stdout
    assert done.stdout.isascii()
