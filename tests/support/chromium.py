"""A headless Chromium driven through the DevTools protocol, over the pipe it offers for that.

The pipe (`--remote-debugging-pipe`) carries JSON messages that end with a zero byte: read by
Chromium from file descriptor 3, written by it to 4. It needs no port and no other package.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE_S, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

# Puts the two ends where Chromium looks for them, then becomes Chromium.
_EXEC = "import os,sys; os.dup2(int(sys.argv[1]),3); os.dup2(int(sys.argv[2]),4); " + (
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium with one page; records its console and its network requests."""

    def __init__(self, executable: str, profile: Path) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Descriptors above 4, so that moving one to 3 cannot overwrite the other.
        low, high = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out))
        os.close(theirs_in)
        os.close(theirs_out)
        command = [sys.executable, "-c", _EXEC, str(low), str(high), executable]
        with (profile / "chromium.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *FLAGS, f"--user-data-dir={profile / 'profile'}", "about:blank"],
                pass_fds=(low, high),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(low)
        os.close(high)
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, timeout_s: float = PATIENCE_S, **parameters: Any) -> dict[str, Any]:
        """The result of one command; AssertionError with the message of Chromium where it fails."""
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        wanted = self._id
        end = time.monotonic() + timeout_s
        while True:
            reply = self._next(end)
            assert reply is not None, f"Chromium did not answer {method} within {timeout_s} s"
            if reply.get("id") == wanted:
                assert "error" not in reply, f"{method}: {reply['error']}"
                result: dict[str, Any] = reply["result"]
                return result
            self.events.append(reply)

    def _next(self, end: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                return None
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def navigate(self, url: str) -> None:
        """Show an address and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file at a size and wait until every chart is drawn."""
        self.events.clear()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")
        scripted = "document.querySelectorAll('figure[data-spec]:not([data-ready])').length === 0"
        if self.evaluate("typeof window.vegaEmbed") == "function":
            self.wait_for(scripted)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def wait_for(self, expression: str) -> None:
        try:
            wait_until(lambda: self.evaluate(expression))
        except AssertionError as error:
            raise AssertionError(f"never true: {expression}; {self.console()}") from error

    def evaluate(self, expression: str) -> Any:
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def console(self) -> list[str]:
        """Every line on the console, exception, and browser's complaint since the page opened."""
        self.evaluate("0")  # takes in what is still on its way
        lines = []
        for event in self.events:
            details = event.get("params", {})
            if event["method"] == "Runtime.consoleAPICalled":
                texts = [str(a.get("value", a.get("description"))) for a in details["args"]]
                lines.append(f"{details['type']}: {' '.join(texts)}")
            elif event["method"] == "Runtime.exceptionThrown":
                lines.append(f"exception: {details['exceptionDetails']}")
            elif event["method"] == "Log.entryAdded":
                lines.append(f"{details['entry']['level']}: {details['entry']['text']}")
        return lines

    def requests(self) -> list[str]:
        """Every address asked for since the page opened."""
        self.evaluate("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"no {', '.join(NAMES)} is installed")
    running = Browser(executable, tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()
