"""fsspec's other schemes, by the one that needs no server."""

from __future__ import annotations

import uuid

import fsspec
import pytest

from cabrank.errors import ChangedError, ObjectMissingError
from cabrank.store import open_store


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}/"


def test_round_trip(root: str) -> None:
    store = open_store(root)
    put = store.put(root + "sub/a b.csv", b"0123456789")
    store.put(root + "sub.csv", b"")
    assert list(store.list(root)) == [store.stat(root + "sub.csv"), put]
    assert [info.uri for info in store.list(root + "sub/")] == [root + "sub/a b.csv"]
    assert list(store.list(root + "nothing/")) == []
    assert store.read(put) == b"0123456789"
    assert store.read(put, 2, 3) == b"234"
    assert store.read(put, 8) == b"89"
    store.delete(put.uri)
    store.delete(put.uri)
    with pytest.raises(ObjectMissingError):
        store.stat(put.uri)


def test_a_changed_object_is_noticed(root: str) -> None:
    store = open_store(root)
    info = store.put(root + "x", b"old")
    with fsspec.open(root + "x", "wb") as file:
        file.write(b"newer")
    with pytest.raises(ChangedError, match="replaced"):
        store.read(info, 0, 2)


def test_a_writer_that_fails_leaves_nothing(root: str) -> None:
    store = open_store(root)

    def fail() -> None:
        with store.writer(root + "x") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(store.list(root)) == []
