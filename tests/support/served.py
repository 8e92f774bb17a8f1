"""`cubemesh serve` as a process, and requests to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from patience import PATIENCE_S


@contextmanager
def serving(
    *words: str, store: Path, verify: Any = True, agent: bool = False
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A server process, and what it printed when it was ready."""
    command = [sys.executable, "-m", "cubemesh", "serve", "--json", "--no-open"]
    if not agent:
        command.append("--no-agent")
    with subprocess.Popen(
        [*command, "--store", str(store), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
    ) as process:
        try:
            lines = []
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.rstrip() == "}":
                    break
            assert lines, process.communicate()[1]
            yield process, json.loads("".join(lines))
        finally:
            process.kill()


def ask(ready: dict[str, Any], path: str, **given: Any) -> httpx.Response:
    token = Path(ready["token_file"]).read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(ready["address"] + path, headers=headers, timeout=PATIENCE_S, **given)
