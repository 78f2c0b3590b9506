"""The only door to object storage: list, stat, ranged read, publish; one implementation a kind of store.

    open_store(uri)  →  LocalStore   file:// and plain paths          store/local.py
                        S3Store      s3://, through boto3             store/s3.py
                        WebStore     http:// and https://, read only  store/web.py
                        ForeignStore fsspec's other schemes           store/foreign.py

URIs are canonical on the way out (`file:///abs/path`, `s3://bucket/key`, never percent-encoded for these two), and keys
are taken to the letter: `csv//dev/` is not `csv/dev/`. Every failure leaves as one of `cabrank.errors`, the foreign
error kept as its cause.
"""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

StorageOptions = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a stat says of one object: enough to read exactly these bytes later, or to notice otherwise."""

    uri: str
    """Canonical, with its scheme."""
    size: int | None
    """Bytes; None where the store does not say (some web servers)."""
    etag: str | None = None
    """As the store gives it, quotes removed; None for files and for servers without ETags."""
    modified: float | None = None
    """Seconds since 1970 of the last change, where known: pins objects that have no ETag."""

    @property
    def pin(self) -> str:
        """What identifies these bytes: the ETag, else size and time of change, else an empty string."""
        if self.etag is not None:
            return self.etag
        if self.size is not None and self.modified is not None:
            return f"{self.size}-{self.modified:.6f}"
        return ""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of a whole object, as its store keeps it."""

    algorithm: str
    """`crc32`, or a name that hashlib knows."""
    value: bytes

    def fits(self, data: bytes | memoryview) -> bool:
        """Whether `data` is that object."""
        if self.algorithm == "crc32":
            return zlib.crc32(data).to_bytes(4, "big") == self.value
        return hashlib.new(self.algorithm, data).digest() == self.value


class Store(ABC):
    """One store, reached with one set of options. Safe to share between threads; picklable; opens its clients
    lazily and anew in a forked child. Methods raise `StorageError`'s children, and `ChangedError` from reads."""

    remote: ClassVar[bool] = True
    """Whether reading takes a network: then it is worth many requests at once."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose URI starts with `prefix`, recursively, in the order of their names' UTF-8 bytes.
        Never cached. Nothing there: an empty iterator; bucket missing: `MissingBucketError`."""

    @abstractmethod
    def stat(self, uri: str) -> ObjectInfo:
        """One object's facts; `ObjectMissingError` where there is none."""

    @abstractmethod
    def read(self, info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of the object that `info` describes, all of them or an error: a different
        object (by ETag, or size and time) is a `ChangedError`; a missing one `ObjectMissingError`. One request, no
        retry: `cabrank.data.fetch` adds those."""

    def splittable(self, info: ObjectInfo) -> bool:
        """Whether ranges of the object can be read one by one and surely belong together; else it is read whole."""
        return info.size is not None and info.pin != ""

    def checksum(self, info: ObjectInfo) -> Checksum | None:  # noqa: ARG002
        """The whole object's checksum, where the store keeps one that can be verified here."""
        return None

    def check_writable(self, uri: str) -> None:  # noqa: ARG002
        """`ConfigError` where this kind of store is only read from. Asks nobody, and says nothing of permissions."""
        return

    @abstractmethod
    def put(self, uri: str, data: bytes) -> ObjectInfo:
        """Publishes a whole small object: a reader sees the old one or the new one. Creates folders where needed."""

    @abstractmethod
    def writer(self, uri: str) -> AbstractContextManager[BinaryIO]:
        """A binary file to write a large object piece by piece in bounded memory: published when the block ends well,
        and gone without a trace when it raises."""

    @abstractmethod
    def delete(self, uri: str) -> None:
        """Removes one object; it is no error when it is already gone."""


def in_order(infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """As `Store.list` gives them."""
    return iter(sorted(infos, key=lambda info: info.uri.encode()))


def open_store(uri: str, storage_options: StorageOptions | None = None, *, writable: bool = False) -> Store:
    """The store that `uri` lives in. `storage_options` are fsspec's and s3fs's words (`anon`, `key`, `secret`, `token`,
    `profile`, `endpoint_url`, `client_kwargs`, `config_kwargs`); an unknown one is a `ConfigError` that lists these.
    `writable`: whoever is going to write learns now, by `ConfigError`, where that can never be done."""
    from cabrank.store.opening import open_by_scheme  # implementations are imported at use

    store = open_by_scheme(uri, storage_options or {})
    if writable:
        store.check_writable(uri)
    return store


def canonical(uri: str) -> str:
    """`uri` (or a glob) as listings spell it: `file:///abs/path` for any path; `s3://` for `s3a://`."""
    from cabrank.store.opening import canonical_by_scheme

    return canonical_by_scheme(uri)
