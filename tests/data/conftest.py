"""A store in memory for tests that watch every single operation; files and S3 are tested through the real ones."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest

from cabrank.errors import ChangedError, ObjectMissingError
from cabrank.store import ObjectInfo, Store


class MemoryStore(Store):
    """Objects in a dict, with ETags, and a journal of what changed them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.journal: list[tuple[str, str]] = []

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from [self.stat(uri) for uri in sorted(self.objects, key=str.encode) if uri.startswith(prefix)]

    def stat(self, uri: str) -> ObjectInfo:
        if uri not in self.objects:
            raise ObjectMissingError(uri)
        data = self.objects[uri]
        return ObjectInfo(uri, len(data), hashlib.md5(data).hexdigest(), 0.0)

    def read(self, info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        if self.stat(info.uri).pin != info.pin:
            raise ChangedError(info.uri)
        data = self.objects[info.uri]
        return data[start : None if length is None else start + length]

    def put(self, uri: str, data: bytes) -> ObjectInfo:
        self.objects[uri] = data
        self.journal.append(("put", uri))
        return self.stat(uri)

    @contextmanager
    def writer(self, uri: str) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        self.put(uri, file.getvalue())

    def delete(self, uri: str) -> None:
        self.objects.pop(uri, None)
        self.journal.append(("delete", uri))


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore()
