"""Web servers, read only: ranges where the server serves them and pins the object, whole objects otherwise.

A server may ignore a range, a condition, or both, and still answer 200: each answer is checked against what was asked
and planned, so that no byte is ever doubled, shifted or of another version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate, parsedate_to_datetime
from typing import Any, BinaryIO, NoReturn
from urllib.parse import urlsplit

from cabrank.errors import (
    AccessError,
    CabrankError,
    ChangedError,
    ConfigError,
    ObjectMissingError,
    StorageError,
    ThrottledError,
    UnreachableError,
)
from cabrank.store import ObjectInfo, Store, in_order
from cabrank.store.process import PerProcess
from cabrank.store.retry import Patience, persist

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")

STATUSES: dict[int, tuple[type[CabrankError], str]] = {
    401: (AccessError, "the server asks who you are: pass storage_options={'headers': {'Authorization': …}}"),
    403: (AccessError, "access denied: pass storage_options={'headers': …}, or renew a signed address"),
    404: (ObjectMissingError, "there is no such object: check the address"),
    410: (ObjectMissingError, "the object is gone: plan again"),
    412: (ChangedError, "the object was replaced after it was planned: list and plan again"),
    416: (ChangedError, "the object is shorter than planned: list and plan again"),
    429: (ThrottledError, "the server asks for fewer requests: use fewer readers, or come back later"),
    503: (ThrottledError, "the server asks for fewer requests: use fewer readers, or come back later"),
}


class WebStore(Store):
    """One set of headers for all requests. Listing reads the links of a server's index page."""

    def __init__(self, headers: Mapping[str, str] | None = None, patience: Patience | None = None) -> None:
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}  # an encoded body has another size
        self._patience = patience or Patience()
        self._pool: PerProcess[Any] = PerProcess(_make_pool)
        self._whole_only: set[str] = set()
        """Hosts that were seen to ignore ranges."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        uris = [uri for uri in self._links(prefix[: prefix.rindex("/") + 1]) if uri.startswith(prefix)]
        if not uris and not prefix.endswith("/"):
            uris = [prefix]  # servers without an index page still have the object itself
        with ThreadPoolExecutor(8) as pool:
            infos = [info for info in pool.map(self._stat_or_none, uris) if info is not None]
        return in_order(infos)

    def stat(self, uri: str) -> ObjectInfo:
        return persist(lambda: self._probe(uri), self._patience)

    def read(self, info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        if length is None and info.size is not None:
            length = info.size - start
        if length == 0:
            return b""
        headers = {**_conditions(info), **_range(info, start, length)}
        with self._get(info.uri, headers) as answer:
            now = _info(info.uri, answer)
            if info.pin and (now.pin, now.size) != (info.pin, info.size):
                raise ChangedError(f"{info.uri} was replaced after it was planned: list and plan again")
            if answer.status == 206:
                match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if match is None or match[1] != str(start):
                    raise StorageError(f"{info.uri}: asked for bytes from {start}, got {match and match[0]}")
                skip = 0
            else:
                skip = start
            data = _body(answer, skip, length)
        if length is not None and len(data) != length:
            raise UnreachableError(f"{info.uri}: {len(data)} of {length} bytes arrived: check the network")
        return data

    def splittable(self, info: ObjectInfo) -> bool:
        return super().splittable(info) and urlsplit(info.uri).netloc not in self._whole_only

    def put(self, uri: str, data: bytes) -> ObjectInfo:  # noqa: ARG002
        self.check_writable(uri)

    def writer(self, uri: str) -> AbstractContextManager[BinaryIO]:
        self.check_writable(uri)

    def delete(self, uri: str) -> None:
        self.check_writable(uri)

    def check_writable(self, uri: str) -> NoReturn:
        raise ConfigError(
            f"{uri}: web servers are only read from: write to a folder or to s3://, or copy it there first"
        )

    def _links(self, folder: str) -> tuple[str, ...]:
        """All files linked from an index page and from those below it; none where there is no page."""
        from fsspec.implementations.http import HTTPFileSystem

        kwargs = {"headers": dict(self._headers)}
        fs = HTTPFileSystem(use_listings_cache=False, skip_instance_cache=True, client_kwargs=kwargs)
        try:
            return tuple(_below(fs, folder))
        except FileNotFoundError:
            return ()
        except Exception as error:
            raise UnreachableError(f"{folder}: no list of links came: {error}: check the address") from error

    def _stat_or_none(self, uri: str) -> ObjectInfo | None:
        try:
            return self.stat(uri)
        except ObjectMissingError:
            return None

    def _probe(self, uri: str) -> ObjectInfo:
        """One byte is asked for, since a HEAD does not say whether the server serves ranges."""
        try:
            with self._get(uri, {"Range": "bytes=0-0"}) as answer:
                if answer.status != 206:
                    self._whole_only.add(urlsplit(uri).netloc)
                return _info(uri, answer)
        except _EmptyObjectError:
            return ObjectInfo(uri, 0)

    @contextmanager
    def _get(self, uri: str, headers: Mapping[str, str]) -> Iterator[Any]:
        """The answer to one GET, its body unread; released at the end, its connection kept if the body was read."""
        from urllib3.exceptions import HTTPError

        try:
            answer = self._pool.get().request("GET", uri, headers={**self._headers, **headers}, preload_content=False)
            try:
                _check_status(uri, answer)
                yield answer
            finally:
                if answer.length_remaining:
                    answer.close()
                answer.release_conn()
        except HTTPError as error:
            raise UnreachableError(f"{uri}: no whole answer: {error}: check address and network") from error


def _below(fs: Any, folder: str) -> Iterator[str]:
    for link in sorted(set(fs.ls(folder, detail=False))):
        name = link.removeprefix(folder)
        if name in (link, "") or "?" in name or "#" in name:
            continue  # up, to itself, or the same page in another order
        if name.endswith("/"):
            yield from _below(fs, link)
        else:
            yield link


class _EmptyObjectError(StorageError):
    """No byte 0: what an empty object answers to a range."""


def _make_pool() -> Any:
    from urllib3 import PoolManager, Retry, Timeout

    retries = Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)
    return PoolManager(maxsize=64, retries=retries, timeout=Timeout(connect=4, read=20))


def _check_status(uri: str, answer: Any) -> None:
    if answer.status in (200, 206):
        return
    if answer.status == 416 and answer.headers.get("Content-Range", "").endswith("/0"):
        raise _EmptyObjectError(f"{uri} is empty now: list and plan again")
    default = UnreachableError if answer.status >= 500 else StorageError
    kind, remedy = STATUSES.get(answer.status, (default, "the server refuses: check the address"))
    raise kind(f"{uri}: {remedy} [{answer.status} {answer.reason}]")


def _info(uri: str, answer: Any) -> ObjectInfo:
    """What the headers say: the size of the whole object, a strong ETag, the time of change."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "")) if answer.status == 206 else None
    size = match[2] if match else answer.headers.get("Content-Length", "*")
    if answer.headers.get("Content-Encoding", "identity") != "identity" or (answer.status == 206 and match is None):
        size = "*"
    etag = answer.headers.get("ETag", "")
    modified = answer.headers.get("Last-Modified")
    return ObjectInfo(
        uri,
        None if size == "*" else int(size),
        etag.strip('"') if etag and not etag.startswith("W/") else None,  # a weak one may outlive a change of bytes
        parsedate_to_datetime(modified).timestamp() if modified else None,
    )


def _conditions(info: ObjectInfo) -> dict[str, str]:
    if info.etag is not None:
        return {"If-Match": f'"{info.etag}"'}
    if info.modified is not None:
        return {"If-Unmodified-Since": formatdate(info.modified, usegmt=True)}
    return {}


def _range(info: ObjectInfo, start: int, length: int | None) -> dict[str, str]:
    if start == 0 and length == info.size:
        return {}
    return {"Range": f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"}


def _body(answer: Any, skip: int, length: int | None) -> bytes:
    """`length` bytes after the first `skip`, without holding those."""
    while skip and (passed := answer.read(min(skip, 1 << 20))):
        skip -= len(passed)
    data: bytes = answer.read(length)
    return data
