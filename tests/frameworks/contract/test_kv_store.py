"""The store of ranks over inherited sockets: values, waiting, what is refused, and its end."""

import json
import socket
import threading
from contextlib import contextmanager

import pytest

from cubemesh.frameworks.contract.kv_store import (
    KEY_CHARACTERS,
    MESSAGE_BYTES,
    KVStore,
    StoreClient,
    serve_store,
)


@contextmanager
def connected(ranks, upstream=None):
    pairs = [socket.socketpair() for _ in range(ranks)]
    serve_store([here for here, _ in pairs], upstream)
    try:
        yield [theirs for _, theirs in pairs]
    finally:
        for _, theirs in pairs:
            # Not closed: a client's thread may be about to read, and another socket would get the
            # number. Without its client and this frame it closes itself.
            theirs.shutdown(socket.SHUT_RDWR)


def test_a_value_is_read_by_the_others_and_counters_count():
    with connected(2) as ends:
        one, other = map(StoreClient, ends)
        one.put("a", {"list": [1, 2.5, None]})
        assert other.get("a", 60.0) == {"list": [1, 2.5, None]}
        assert (one.add("n"), other.add("n", 4), one.get("n", 60.0)) == (1, 5, 5)
        assert (other.has("a"), other.has("b")) == (True, False)
        assert (one.delete("a"), one.delete("a"), other.has("a")) == (True, False, False)


def test_a_rank_that_waits_delays_no_other_thread_of_its_process():
    with connected(2) as ends:
        one, other = map(StoreClient, ends)
        found = []
        waiting = threading.Thread(target=lambda: found.append(one.get("late", 600.0)))
        waiting.start()
        one.put("meanwhile", 1)
        assert other.get("meanwhile", 60.0) == 1
        other.put("late", 2)
        waiting.join()
        assert found == [2]


def test_a_key_that_is_never_set_times_out():
    with connected(1) as (end,), pytest.raises(TimeoutError, match="'nothing'"):
        StoreClient(end).get("nothing", 0.01)


@pytest.mark.parametrize(
    "line",
    [
        b"\x80\x04.\n",
        b"[]\n",
        b"{}\n",
        b'{"id":0,"op":"eval","key":"a"}\n',
        b'{"id":0,"op":"get","key":["a"]}\n',
        b'{"id":0,"op":"add","key":"a","value":"1"}\n',
        json.dumps({"id": 0, "op": "has", "key": "k" * (KEY_CHARACTERS + 1)}).encode() + b"\n",
    ],
)
def test_an_invalid_message_ends_its_connection_only(line):
    with connected(2) as (bad, good):
        bad.sendall(line)
        assert bad.recv(1) == b""
        assert not StoreClient(good).has("a")


def test_a_value_that_is_too_large_is_refused_before_it_is_sent():
    with connected(1) as (end,):
        client = StoreClient(end)
        with pytest.raises(ValueError, match=str(MESSAGE_BYTES)):
            client.put("a", "x" * MESSAGE_BYTES)
        assert not client.has("a")


def test_launchers_pass_messages_on_to_the_store_of_the_run():
    """Two hosts with a rank each."""
    store, links = KVStore(), [socket.socketpair() for _ in range(2)]
    with connected(1, links[0][0]) as (a,), connected(1, links[1][0]) as (b,):
        for _, end in links:
            threading.Thread(target=relay, args=(store, end), daemon=True).start()
        one, other = StoreClient(a), StoreClient(b)
        one.put("address", "10.0.0.1")
        assert other.get("address", 60.0) == "10.0.0.1"
        for _, end in links:
            end.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionError):
            one.get("never", 600.0)


def relay(store, end):
    with end, end.makefile("r") as lines:
        for line in lines:
            store.handle(json.loads(line), lambda m: end.sendall(json.dumps(m).encode() + b"\n"))


def test_an_answer_that_is_no_message_ends_the_wait():
    here, end = socket.socketpair()
    client = StoreClient(end)
    threading.Thread(target=lambda: (here.recv(1), here.sendall(b"[]\n"))).start()
    with pytest.raises(ConnectionError):
        client.get("a", 600.0)


def test_when_the_launcher_ends_waiting_ranks_fail():
    here, end = socket.socketpair()
    client = StoreClient(end)
    threading.Thread(target=lambda: (here.recv(1), here.close())).start()
    with pytest.raises(ConnectionError):
        client.get("a", 600.0)
    with pytest.raises(ConnectionError):
        client.put("a", 1)
