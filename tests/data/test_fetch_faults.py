"""Fifty injected faults of each kind: no wrong byte, transient ones survived, permanent ones typed."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from fault_proxy import FaultProxy
from stores import Bucket

from cabrank.data.fetch import Fetcher
from cabrank.errors import AccessError, CabrankError, ChangedError, ExpiredError, ThrottledError, UnreachableError
from cabrank.store.retry import Patience
from cabrank.store.s3 import S3Store

OBJECTS = 10
RANGES = 5  # an object: 50 targets in all
RANGE = 1000
QUICK = Patience(attempts=4, first=0.001, cap=0.002)


def _data(number: int) -> bytes:
    return random.Random(number).randbytes(RANGES * RANGE)


def _fetcher(options: dict[str, Any], patience: Patience = QUICK) -> Fetcher:
    options = {**options, "config_kwargs": {"read_timeout": 0.5}}
    return Fetcher(S3Store(options, patience), range_bytes=RANGE, patience=patience)


@pytest.mark.parametrize(
    "kind", ["slow_down", "internal_error", "expired_400", "expired_403", "reset", "truncate", "hang"]
)
def test_fifty_transient_faults(any_s3: Bucket, proxy: FaultProxy, proxied: dict[str, Any], kind: str) -> None:
    infos = [any_s3.put(f"part-{n}", _data(n)) for n in range(OBJECTS)]
    proxy.inject(kind, first=1)
    fetcher = _fetcher(proxied)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(fetcher.fetch, infos))
    assert [bytes(result) for result in results] == [_data(n) for n in range(OBJECTS)]
    assert proxy.injected == {kind: 50}
    ledger = fetcher.ledger
    assert (ledger.requests, ledger.retries, ledger.bytes) == (100, 50, OBJECTS * RANGES * RANGE)
    print(f"{kind}: {proxy.injected[kind]} injected, {ledger.retries} retried")  # noqa: T201


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("slow_down", ThrottledError, "fewer requests.*SlowDown.*gave up after 4 tries in"),
        ("internal_error", UnreachableError, "failed.*InternalError.*gave up after 4 tries in"),
        ("expired_400", ExpiredError, "expired.*ExpiredToken.*gave up after 4 tries in"),
        ("expired_403", ExpiredError, "expired.*ExpiredToken.*gave up after 4 tries in"),
        ("reset", UnreachableError, "gave up after 4 tries in"),
        ("truncate", UnreachableError, "gave up after 4 tries in"),
        ("denied", AccessError, "access denied.*AccessDenied"),
    ],
)
def test_fifty_permanent_faults(
    any_s3: Bucket, proxy: FaultProxy, proxied: dict[str, Any], kind: str, error: type[CabrankError], says: str
) -> None:
    info = any_s3.put("part-0", b"x" * RANGE)
    proxy.inject(kind)
    fetcher = _fetcher(proxied)
    while proxy.injected[kind] < 50:
        with pytest.raises(error, match=f"(?s)s3://{any_s3.name}/part-0.*{says}") as caught:
            fetcher.fetch(info)
        assert type(caught.value) is error
        assert caught.value.__cause__ is not None
    assert fetcher.ledger.bytes == 0


def test_fifty_objects_replaced_between_ranges(any_s3: Bucket, proxy: FaultProxy, proxied: dict[str, Any]) -> None:
    """The old version's first range is read, and the object replaced before the second one's request arrives."""
    fetcher = Fetcher(S3Store(proxied), range_bytes=RANGE, concurrency=1, patience=QUICK)
    infos = [any_s3.put(f"part-{n}", b"old" * RANGE) for n in range(50)]

    def replace(number: int) -> None:
        any_s3.put(f"part-{number}", b"new" * RANGE)

    for number in range(50):
        proxy.inject("replace", 1, f"^GET .*/part-{number}$", partial(replace, number))
    for number, info in enumerate(infos):
        with pytest.raises(ChangedError, match=f"part-{number}.*replaced"):
            fetcher.fetch(info)
    assert proxy.injected["replace"] >= 50


def test_a_flipped_bit_is_found_by_the_checksum(any_s3: Bucket, proxy: FaultProxy, proxied: dict[str, Any]) -> None:
    infos = [any_s3.put(f"part-{n}", _data(n)) for n in range(OBJECTS)]
    proxy.inject("corrupt", first=1)
    fetcher = _fetcher(proxied)
    for number, info in enumerate(infos):
        assert fetcher.fetch(info) == _data(number)
    assert proxy.injected["corrupt"] == 50


def test_a_lasting_bit_flip_is_an_error(any_s3: Bucket, proxy: FaultProxy, proxied: dict[str, Any]) -> None:
    info = any_s3.put("part-0", _data(0))
    proxy.inject("corrupt")
    with pytest.raises(UnreachableError, match=r"part-0.*checksum"):
        _fetcher(proxied).fetch(info)
    whole = Fetcher(S3Store(proxied), patience=QUICK)
    with pytest.raises(UnreachableError, match=r"part-0.*damaged"):
        whole.fetch(info)


def test_renewed_credentials_are_picked_up(
    any_s3: Bucket, proxy: FaultProxy, proxied: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session token in the environment is replaced while the store has a client with the old one."""
    info = any_s3.put("part-0", b"x" * RANGE)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
    fetcher = _fetcher({"endpoint_url": proxied["endpoint_url"]})
    fetcher.fetch(info)
    assert proxy.tokens == {"old"}
    monkeypatch.setenv("AWS_SESSION_TOKEN", "new")
    proxy.inject("expired_400", first=1)
    assert fetcher.fetch(info) == b"x" * RANGE
    assert proxy.tokens == {"old", "new"}
