"""The ledger against what can be counted by hand."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from stores import Bucket

from cabrank import ObjectStorageDataset
from cabrank.data.ledger import Account, Ledger


def test_a_local_pass_a_cached_pass_and_their_sum(tmp_path: Path) -> None:
    sizes = 0
    for number in range(3):
        path = tmp_path / f"part-{number:05d}.csv"
        path.write_text("y,x\n" + "".join(f"{i},{'' if i == 5 else i}\n" for i in range(20)))
        sizes += path.stat().st_size
    ds = ObjectStorageDataset(str(tmp_path), batch_size=8, nulls="drop", cache_dir=str(tmp_path / "cache"))
    for _ in range(2):
        list(ds)
        assert (ds.ledger.latest.batches, ds.ledger.latest.rows, ds.ledger.latest.dropped_rows) == (8, 60, 3)
    latest, total = ds.ledger.latest, ds.ledger.total
    assert (latest.cache_hits, latest.cache_misses, latest.bytes, latest.requests) == (3, 0, 0, 0)
    assert (total.cache_hits, total.cache_misses) == (3, 3)
    assert total.bytes >= sizes
    assert total.parse_seconds > 0 == latest.parse_seconds
    assert 0 < latest.stall_seconds == pytest.approx(latest.wait_seconds / 8)
    assert latest.wait_seconds < total.wait_seconds
    assert ds.dropped == 6


def test_bytes_and_requests_of_a_store(s3: Bucket) -> None:
    size = 0
    for number in range(4):
        data = b"y,x\n" + b"1,2\n" * 1000
        size += len(data)
        s3.put(f"csv/part-{number:05d}.csv", data)
    s3.put("csv/.meta/shards/part-0.csv", b"id,count\n0,1000\n1,1000\n2,1000\n3,1000\n")
    ds = ObjectStorageDataset(f"{s3.uri}/csv", storage_options=s3.storage_options, batch_size=500, nulls="fill=3")
    assert sum(len(batch) for batch in ds) == 4000
    account = ds.ledger.latest
    assert (account.bytes, account.requests, account.retries) == (size, 4, 0)
    assert account.fetch_seconds > 0
    assert set(account.facts()) >= {"bytes", "requests", "retries", "wait_seconds", "stall_seconds"}


def test_filled_fields_are_counted(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("y,x\n1,\n,\n3,4\n")
    ds = ObjectStorageDataset(str(tmp_path), batch_size=2, nulls="fill=0")
    list(ds)
    assert ds.ledger.latest.filled_fields == 3


def test_accounts_add_up_and_stay_at_home() -> None:
    ledger = Ledger()
    ledger.add(batches=2, wait_seconds=1.5)
    ledger.begin()
    ledger.add(batches=1, wait_seconds=0.5)
    assert ledger.total == Account(batches=3, wait_seconds=2.0)
    assert ledger.latest == Account(batches=1, wait_seconds=0.5)
    assert pickle.loads(pickle.dumps(ledger)).total == Account()
