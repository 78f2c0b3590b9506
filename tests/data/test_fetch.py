"""Fetcher on a store without faults: bytes, bounds, the ledger, other processes."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy
from stores import Bucket

from cabrank.data.fetch import Fetcher
from cabrank.errors import ChangedError, ObjectMissingError
from cabrank.store import ObjectInfo, open_store


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1999, 2000, 2001, 54_321])
def test_every_size_around_the_edges_of_ranges(any_s3: Bucket, size: int) -> None:
    data = os.urandom(size)
    info = any_s3.put("k", data)
    fetcher = Fetcher(any_s3.store, range_bytes=1000)
    assert fetcher.fetch(info) == data
    assert fetcher.ledger.requests == max(1, -(-size // 1000))
    assert fetcher.ledger.bytes == size
    if size > 10:
        assert fetcher.fetch_range(info, 7, size - 9) == data[7:-2]


def test_objects_larger_than_the_budget_do_not_deadlock(any_s3: Bucket) -> None:
    data = os.urandom(50_000)
    infos = [any_s3.put(f"k{n}", data) for n in range(6)]
    fetcher = Fetcher(any_s3.store, range_bytes=8000, concurrency=3, budget_bytes=20_000)
    with ThreadPoolExecutor(6) as pool:
        assert all(result == data for result in pool.map(fetcher.fetch, infos * 2))


def test_a_fetch_that_fails_ends_the_others_and_the_next_one_works(any_s3: Bucket) -> None:
    old = any_s3.put("k", b"a" * 50_000)
    new = any_s3.put("k", b"b" * 50_000)
    fetcher = Fetcher(any_s3.store, range_bytes=1000, concurrency=2)
    with pytest.raises(ChangedError):
        fetcher.fetch(old)
    with pytest.raises(ObjectMissingError):
        fetcher.fetch(ObjectInfo(f"{any_s3.uri}/no", 5000, "e"))
    assert fetcher.fetch(new) == b"b" * 50_000


def test_throttling_lowers_the_number_of_requests_at_once(proxy: FaultProxy, any_s3: Bucket, proxied: Any) -> None:
    info = any_s3.put("part", b"x" * 20_000)
    proxy.inject("slow_down", first=1)
    fetcher = Fetcher(open_store(any_s3.uri, proxied), range_bytes=1000, concurrency=8)
    assert fetcher.fetch(info) == b"x" * 20_000
    assert fetcher.requests_at_once < 8


def _fetch_in_child(fetcher: Fetcher, info: ObjectInfo) -> tuple[bytes, int]:
    return bytes(fetcher.fetch(info)), fetcher.ledger.bytes


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_fetcher_goes_to_other_processes(s3: Bucket, method: str) -> None:
    data = os.urandom(5000)
    info = s3.put("k", data)
    fetcher = Fetcher(s3.store, range_bytes=1000)
    assert fetcher.fetch(info) == data  # its threads run, and are not the child's
    with get_context(method).Pool(1) as pool:
        assert pool.apply(_fetch_in_child, (fetcher, info)) == (data, 5000)
    assert pickle.loads(pickle.dumps(fetcher)).fetch(info) == data


def test_a_local_file_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 5000)
    store = open_store(str(tmp_path))
    fetcher = Fetcher(store, range_bytes=1000, budget_bytes=1)
    assert fetcher.fetch(store.stat(f"{tmp_path}/f")) == b"x" * 5000
    assert fetcher.ledger.requests == 1
