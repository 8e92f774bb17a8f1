"""Stores of torch.distributed: the run's own, and the one of another launcher."""

import datetime
import os
import socket
import threading

import pytest

pytest.importorskip("torch")

from torch.distributed import PrefixStore, TCPStore

from cubemesh.frameworks.contract.kv_store import StoreClient, serve_store
from cubemesh.frameworks.pytorch.distributed.stores import RelayedStore, TorchStore, open_store
from listening_sockets import listening


def test_the_run_s_store_answers_as_torch_s_own_do():
    here, end = socket.socketpair()
    serve_store([here])
    relayed = RelayedStore(StoreClient(end), 0.05)
    store = PrefixStore("group", relayed)  # calls it from C++, as process groups do
    store.set("address", b"\x00\xff")
    assert store.get("address") == b"\x00\xff"
    assert relayed.get("group/address") == b"\x00\xff"
    assert (store.add("ranks", 1), store.add("ranks", 2), store.get("ranks")) == (1, 3, b"3")
    store.wait(["address", "ranks"], datetime.timedelta(seconds=60))
    assert (store.check(["address", "ranks"]), store.check(["address", "none"])) == (True, False)
    assert (store.delete_key("address"), store.check(["address"])) == (True, False)
    with pytest.raises(TimeoutError, match="group/never"):
        store.get("never")
    end.close()


def test_rank_0_of_another_launcher_listens_at_the_address_given(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in rank.items():
        monkeypatch.setenv(name, value)
    before = listening(os.getpid())
    store = open_store(None, datetime.timedelta(seconds=60))
    assert listening(os.getpid()) - before == {("127.0.0.1", port)}
    store.set("a", "1")
    assert store.get("a") == b"1"


def test_rank_0_serves_its_store_until_every_rank_has_left():
    limit = datetime.timedelta(seconds=600)
    served = TCPStore("127.0.0.1", 0, 2, True, limit, wait_for_workers=False)
    first, second = (
        TorchStore(served),
        TorchStore(TCPStore("127.0.0.1", served.port, 2, False, limit)),
    )
    leaving = threading.Thread(target=first.leave, args=(0, 2, 600), daemon=True)
    leaving.start()
    second.put("last", 7)
    assert second.get("last", 600) == 7
    assert leaving.is_alive()
    second.leave(1, 2, 600)
    leaving.join()
