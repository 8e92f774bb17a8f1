"""Progress of `cubemesh prepare`: one changing line on a terminal, few lines elsewhere."""

import io

import pytest
from rich.console import Console

from cubemesh.data.prepare.image_set import PrepareProgress
from cubemesh.views.progress import INTERVAL_S, ShardProgress


def at(shards: int, skipped: int = 0) -> PrepareProgress:
    return PrepareProgress(
        shards=shards, all_shards=4, samples=1000 * shards, skipped=skipped, bytes=1 << 20
    )


@pytest.mark.parametrize(("terminal", "lines"), [(True, 1), (False, 2)])
def test_lines(terminal: bool, lines: int) -> None:
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, force_terminal=terminal, no_color=True, width=200)
    with ShardProgress(console, clock=lambda: now[0]) as show:
        show(at(0))
        now[0] = INTERVAL_S
        show(at(1))
        now[0] += 1
        show(at(2))
        show(at(4, skipped=3))
    text = file.getvalue()
    assert text.count("\n") == lines
    last = text.replace("\r", "\n").strip().splitlines()[-1].removeprefix("\x1b[K")
    assert last == "4 of 4 shards, 4,000 images, 1 MiB, 3 cannot be used"
