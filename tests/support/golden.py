"""Golden files: outputs, stored next to the tests, rewritten by `pytest --update-golden`."""

import re
from pathlib import Path

import pytest

VOLATILE = [
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?"), "<time>"),
    (re.compile(r"/(?:tmp|root|home|work)/[\w./-]+"), "<path>"),
]
"""What differs from run to run and from machine to machine."""


class Golden:
    """Compares a text with the golden file of the test that asks."""

    def __init__(self, folder: Path, update: bool) -> None:
        self.folder, self.update = folder, update

    def check(self, name: str, text: str, *masks: tuple[str, str]) -> None:
        """Compare `text` with the file `name`; `masks` are (pattern, replacement) applied first,
        as are those of `VOLATILE`. With --update-golden the file is written instead."""
        for pattern, shown in [*VOLATILE, *((re.compile(p), s) for p, s in masks)]:
            text = pattern.sub(shown, text)
        text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
        path = self.folder / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: run `pytest --update-golden` and read it"
        assert text == path.read_text(), f"{name} changed: if that is meant, --update-golden"


def make_golden(request: pytest.FixtureRequest) -> Golden:
    """The golden files of a test module: `golden/<module without test_>/` next to it."""
    module = Path(request.path)
    folder = module.parent / "golden" / module.stem.removeprefix("test_")
    return Golden(folder, bool(request.config.getoption("--update-golden")))
