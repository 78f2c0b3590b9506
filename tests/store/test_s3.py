"""S3Store against two implementations of the protocol; boto3 itself says what is in the bucket."""

from __future__ import annotations

import os
import pickle
import socket
import time
from multiprocessing import get_context

import pytest
from moto.s3.models import s3_backends
from stores import Bucket

from cabrank.errors import (
    AccessError,
    ChangedError,
    ConfigError,
    MissingBucketError,
    ObjectMissingError,
    UnreachableError,
)
from cabrank.store import ObjectInfo, open_store
from cabrank.store import s3 as s3_module
from cabrank.store.retry import Patience
from cabrank.store.s3 import S3Store

STRANGE = ["a b.csv", "a+b.csv", "a%20b.csv", "é/ü 漢.csv", "year=2019/part=1.csv", "q?x=1&y#z.csv", "~'()!*.csv"]


@pytest.mark.parametrize("key", STRANGE)
def test_keys_are_taken_to_the_letter(any_s3: Bucket, key: str) -> None:
    any_s3.put(key, b"theirs")
    (info,) = any_s3.store.list(f"{any_s3.uri}/")
    assert info.uri == f"{any_s3.uri}/{key}"
    assert any_s3.store.read(info) == b"theirs"
    any_s3.store.put(info.uri, b"ours")
    assert any_s3.keys() == [key]
    assert any_s3.get(key) == b"ours"
    any_s3.store.delete(info.uri)
    assert any_s3.keys() == []


def test_two_slashes_are_not_one(s3: Bucket) -> None:  # SeaweedFS, made of folders, makes them one itself
    s3.put("csv//dev/part-0.csv", b"two")
    s3.put("csv/dev/part-0.csv", b"one")
    store = s3.store
    assert [store.read(info) for info in store.list(f"{s3.uri}/csv//dev/")] == [b"two"]
    assert [store.read(info) for info in store.list(f"{s3.uri}/csv/dev/")] == [b"one"]


def test_a_listing_of_more_than_a_thousand(s3: Bucket) -> None:
    backend = s3_backends["123456789012"]["aws"]  # straight into moto: a thousand requests would take seconds
    for number in range(1003):
        backend.put_object(s3.name, f"many/{number:04}", b"")
    assert [info.uri for info in s3.store.list(f"{s3.uri}/many/")] == [f"{s3.uri}/many/{n:04}" for n in range(1003)]


def test_listings_are_in_byte_order_and_by_prefix(any_s3: Bucket) -> None:
    for key in ("a/b", "a.csv", "a-b", "aé", "az", "b"):
        any_s3.put(key, b"x")
    names = [info.uri.removeprefix(f"{any_s3.uri}/") for info in any_s3.store.list(f"{any_s3.uri}/a")]
    assert names == ["a-b", "a.csv", "a/b", "az", "aé"]


def test_a_listing_is_never_cached(any_s3: Bucket) -> None:
    store = any_s3.store
    assert list(store.list(any_s3.uri)) == []
    any_s3.put("new", b"x")
    assert len(list(store.list(any_s3.uri))) == 1


def test_listing_stat_and_put_say_the_same(any_s3: Bucket) -> None:
    put = any_s3.store.put(f"{any_s3.uri}/k", b"12345")
    stat = any_s3.store.stat(f"{any_s3.uri}/k")
    assert [stat] == list(any_s3.store.list(any_s3.uri))
    assert (put.uri, put.size, put.etag) == (stat.uri, 5, "827ccb0eea8a706c4c34a16891f84e7b")  # md5 of 12345
    assert stat.pin == put.pin
    assert stat.modified is not None
    assert abs(stat.modified - time.time()) < 60


def test_an_empty_object(any_s3: Bucket) -> None:
    any_s3.put("empty", b"")
    (info,) = any_s3.store.list(any_s3.uri)
    assert info.size == 0
    assert any_s3.store.read(info) == b""


def test_ranges(any_s3: Bucket) -> None:
    info = any_s3.put("k", b"0123456789")
    store = any_s3.store
    assert store.read(info, 0, 3) == b"012"
    assert store.read(info, 7) == b"789"
    assert store.read(info, 9, 1) == b"9"
    assert store.read(info, 4, 0) == b""
    with pytest.raises((ChangedError, UnreachableError)):
        store.read(info, 8, 5)


@pytest.mark.parametrize(("start", "length"), [(0, None), (2, 3)])
def test_a_replaced_object_is_noticed(any_s3: Bucket, start: int, length: int | None) -> None:
    info = any_s3.put("k", b"0123456789")
    any_s3.put("k", b"9876543210")
    with pytest.raises(ChangedError, match=r"s3://.*/k.*replaced.*plan again"):
        any_s3.store.read(info, start, length)


def test_what_is_not_there(any_s3: Bucket) -> None:
    store = any_s3.store
    missing = f"{any_s3.uri}/no"
    with pytest.raises(ObjectMissingError, match=missing):
        store.stat(missing)
    with pytest.raises(ObjectMissingError, match=missing):
        store.read(ObjectInfo(missing, 3, "e"))
    store.delete(missing)
    for call in (lambda: list(store.list("s3://no-such-bucket/x")), lambda: store.stat("s3://no-such-bucket/x")):
        with pytest.raises(MissingBucketError, match=r"s3://no-such-bucket/x.*create it") as caught:
            call()
        assert caught.value.exit_code == 5
        assert caught.value.__cause__ is not None


def test_a_large_object_is_written_in_parts(any_s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 << 20)  # the least that S3 takes
    data = os.urandom((11 << 20) + 7)
    with any_s3.store.writer(f"{any_s3.uri}/big") as file:
        for start in range(0, len(data), 999_999):
            file.write(data[start : start + 999_999])
        assert any_s3.keys() == []
    assert any_s3.get("big") == data
    assert any_s3.store.stat(f"{any_s3.uri}/big").etag.endswith("-3")  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 10, 6 << 20])
def test_a_writer_that_fails_leaves_nothing(any_s3: Bucket, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 << 20)

    def fail() -> None:
        with any_s3.store.writer(f"{any_s3.uri}/big") as file:
            file.write(b"x" * size)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert any_s3.keys() == []
    assert "Uploads" not in any_s3.client.list_multipart_uploads(Bucket=any_s3.name)


def test_a_small_object_through_the_writer(any_s3: Bucket) -> None:
    with any_s3.store.writer(f"{any_s3.uri}/small") as file:
        file.write(b"hello")
    assert any_s3.get("small") == b"hello"


def _read_in_child(store: S3Store, info: ObjectInfo) -> bytes:
    return store.read(info)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_store_goes_to_other_processes(any_s3: Bucket, method: str) -> None:
    info = any_s3.put("k", b"across")
    store = any_s3.store
    assert store.read(info) == b"across"  # its client exists, and must not be the child's
    with get_context(method).Pool(1) as pool:
        assert pool.apply(_read_in_child, (store, info)) == b"across"
    assert pickle.loads(pickle.dumps(store)).read(info) == b"across"


def test_an_endpoint_nobody_listens_on_fails_in_seconds() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "k", "secret": "s"}
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=rf"s3://bucket/x at http://127.0.0.1:{port}.*endpoint.*8 tries in"):
        open_store("s3://bucket", options).stat("s3://bucket/x")
    assert time.monotonic() - began < 20


def test_no_credentials() -> None:
    store = S3Store({"endpoint_url": "http://127.0.0.1:9"}, Patience(attempts=1))
    with pytest.raises(AccessError, match="anon"):
        list(store.list("s3://bucket/x"))


@pytest.mark.parametrize("uri", ["s3://", "s3:///key", "bucket/key", "https://bucket/key"])
def test_uris_that_name_no_bucket(uri: str) -> None:
    with pytest.raises(ConfigError, match="write s3://BUCKET/KEY"):
        list(S3Store({}).list(uri))
    with pytest.raises(ConfigError):
        S3Store({}).stat("s3://bucket-only")


@pytest.mark.parametrize("name", ["UPPER", "a", "under_score!"])
def test_names_that_no_bucket_has(s3: Bucket, name: str) -> None:
    with pytest.raises((ConfigError, MissingBucketError), match=name):
        list(s3.store.list(f"s3://{name}/x"))


def test_uploads_of_killed_writers_are_aborted_when_the_key_is_written_again(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, bucket = s3.client, s3.name
    for key in ("big", "bigger"):
        client.create_multipart_upload(Bucket=bucket, Key=key)  # moto says of each that it began in 2010
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 << 20)

    def write() -> list[str]:
        with s3.store.writer(f"{s3.uri}/big") as file:
            file.write(bytes(6 << 20))
        return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())]

    with monkeypatch.context() as patch:
        patch.setattr(s3_module, "DEAD_SECONDS", float("inf"))
        assert sorted(write()) == ["big", "bigger"]
    assert write() == ["bigger"]


def test_a_bucket_alone_is_its_root(s3: Bucket) -> None:
    from cabrank.data.listing import list_parts

    s3.store.put(f"{s3.uri}/part-00000-a.csv", b"x\n1\n")
    assert [part.uri for part in list_parts(s3.uri, s3.store)] == [f"{s3.uri}/part-00000-a.csv"]


@pytest.mark.parametrize("uri", ["s3://B_ad!/x", "s3://a b/x"])
def test_a_bucket_with_an_impossible_name_is_refused_briefly(s3: Bucket, uri: str) -> None:
    with pytest.raises(ConfigError, match=r"3 to 63 of a-z, 0-9, dot, hyphen$"):
        s3.store.put(uri, b"")
