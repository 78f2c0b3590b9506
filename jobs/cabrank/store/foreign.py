"""fsspec's other schemes (`gs://`, `memory://`, …), when the package that speaks them is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from cabrank.errors import (
    AccessError,
    CabrankError,
    ChangedError,
    ConfigError,
    ObjectMissingError,
    UnreachableError,
)
from cabrank.store import ObjectInfo, Store, in_order
from cabrank.store.process import PerProcess


class ForeignStore(Store):
    """One fsspec file system, made once a process, its listings never cached, its file caches never used. Objects are
    pinned by what the file system calls their ETag or checksum, else by size and time of change."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        """`uri` names scheme and host; `options` go to the file system as they are. `ConfigError` where no installed
        package speaks the scheme."""
        self._root = uri
        self._options = dict(options or {})
        self._fs: PerProcess[Any] = PerProcess(self._make)
        self._fs.get()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = prefix[: prefix.rindex("/") + 1]
        with _translated(prefix):
            fs = self._fs.get()
            found = fs.find(folder, detail=True)
            bare = len(fs._strip_protocol(folder).rstrip("/")) + 1  # names come without scheme, and some without host
        infos = [_info(folder + name[bare:], facts) for name, facts in found.items() if facts["type"] == "file"]
        return in_order(info for info in infos if info.uri.startswith(prefix))

    def stat(self, uri: str) -> ObjectInfo:
        with _translated(uri):
            facts = self._fs.get().info(uri)
        if facts["type"] != "file":
            raise ObjectMissingError(f"{uri} is no object: name one, or list the folder")
        return _info(uri, facts)

    def read(self, info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        end = info.size if length is None else start + length
        with _translated(info.uri):
            data: bytes = self._fs.get().cat_file(info.uri, start=start, end=end)
        now = self.stat(info.uri)  # after the read: fsspec has no conditional one
        if (now.size, now.pin) != (info.size, info.pin):
            raise ChangedError(f"{info.uri} was replaced after it was planned: list and plan again")
        if end is not None and len(data) != end - start:
            raise UnreachableError(f"{info.uri}: {len(data)} of {end - start} bytes arrived: check the network")
        return data

    def put(self, uri: str, data: bytes) -> ObjectInfo:
        with self.writer(uri) as file:
            file.write(data)
        return self.stat(uri)

    @contextmanager
    def writer(self, uri: str) -> Iterator[BinaryIO]:
        with tempfile.NamedTemporaryFile() as file:  # uploaded at the end: not all of fsspec's own can be called off
            yield cast(BinaryIO, file)
            file.flush()
            with _translated(uri):
                fs = self._fs.get()
                fs.makedirs(uri.rpartition("/")[0], exist_ok=True)
                fs.put_file(file.name, uri)

    def delete(self, uri: str) -> None:
        try:
            with _translated(uri):
                self._fs.get().rm_file(uri)
        except ObjectMissingError:
            return

    def _make(self) -> Any:
        import fsspec

        fresh = {"skip_instance_cache": True, "use_listings_cache": False}
        try:
            return fsspec.core.url_to_fs(self._root, **self._options, **fresh)[0]
        except ImportError as error:
            raise ConfigError(f"{self._root} needs a package that is not installed: {error}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"no store for {self._root}: {error}; known are paths, file://, s3://, https:// and the schemes of "
                "installed fsspec packages, as gs:// of gcsfs"
            ) from error


def _info(uri: str, facts: Mapping[str, Any]) -> ObjectInfo:
    etag = next((str(facts[name]).strip('"') for name in ("etag", "ETag", "md5Hash") if facts.get(name)), None)
    return ObjectInfo(uri, facts.get("size"), etag, _modified(facts))


def _modified(facts: Mapping[str, Any]) -> float | None:
    for name in ("mtime", "modified", "last_modified", "LastModified", "updated", "created"):
        value = facts.get(name)
        if isinstance(value, (int, float)):
            return float(value)
        if value is not None and hasattr(value, "timestamp"):
            return float(value.timestamp())
    return None


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """File systems of any make: what is no error of Python's own for files counts as a failure of the store."""
    try:
        yield
    except CabrankError:
        raise
    except FileNotFoundError as error:
        raise ObjectMissingError(f"{uri} does not exist: check the name") from error
    except PermissionError as error:
        raise AccessError(f"{uri}: access denied: check the credentials in storage_options") from error
    except Exception as error:
        raise UnreachableError(f"{uri}: the store failed: {type(error).__name__}: {error}") from error
