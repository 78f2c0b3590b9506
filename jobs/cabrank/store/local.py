"""Files: `file://` and plain paths, published by a temp file in the same folder and a rename: all or nothing."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import secrets
import stat as stat_bits
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from cabrank.errors import AccessError, ChangedError, ObjectMissingError, StorageError
from cabrank.store import ObjectInfo, Store

TEMP_PREFIX = ".cabrank-tmp-"  # never listed; the name it becomes is not part of it, as both together may be too long

_TEMP = re.compile(re.escape(TEMP_PREFIX) + "[0-9a-f]{16}")
DEAD_SECONDS = 60.0
"""A temporary file without a lock is younger than this only between its making and its locking."""
LOCKLESS_DEAD_SECONDS = 86400.0
"""The same where the file system has no locks, and nothing tells whether its writer lives."""


def canonical_file(uri: str) -> str:
    """`file:///abs/path` of a `file://` URI or a plain path; characters are taken to the letter, `%20` included."""
    path = uri[len("file://") :] if uri[:7].lower() == "file://" else uri
    slash = "/" if path.endswith("/") else ""
    return "file://" + os.path.abspath(os.path.expanduser(path)).rstrip("/") + slash  # noqa: PTH100, PTH111 (see below)
    # Path.absolute keeps "..", Path.resolve follows links: neither is what a shell user means by a path


def path_of(uri: str) -> Path:
    """The path of a URI, absolute."""
    return Path(canonical_file(uri)[len("file://") :] or "/")


class LocalStore(Store):
    """The local file system. A file is pinned by its size and time of change."""

    remote = False

    def __init__(self) -> None:
        self._swept: set[Path] = set()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        wanted = canonical_file(prefix)[len("file://") :]
        folder = wanted[: wanted.rindex("/") + 1] if "/" in wanted else "/"
        with _translated(prefix):
            found = sorted(_walk(folder, wanted), key=lambda entry: os.fsencode(entry[0]))
        return (_info(path, facts) for path, facts in found)

    def stat(self, uri: str) -> ObjectInfo:
        path = path_of(uri)
        with _translated(uri):
            facts = path.stat()
            if not stat_bits.S_ISREG(facts.st_mode):
                raise ObjectMissingError(f"{uri} is no file: name a file, or list the folder")
        return _info(str(path), facts)

    def read(self, info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        with _translated(info.uri), io.FileIO(path_of(info.uri)) as file:
            before = os.fstat(file.fileno())
            _check_unchanged(info, before)
            end = before.st_size if length is None else start + length
            file.seek(start)
            data = _read_exactly(file, max(0, end - start))
            _check_unchanged(_info(info.uri, before), os.fstat(file.fileno()))
        if len(data) != max(0, end - start):
            raise ChangedError(f"{info.uri} has no bytes {start} to {end}: it holds {before.st_size}; plan it again")
        return data

    def put(self, uri: str, data: bytes) -> ObjectInfo:
        with self.writer(uri) as file:
            file.write(data)
        return self.stat(uri)

    @contextmanager
    def writer(self, uri: str) -> Iterator[BinaryIO]:
        path = path_of(uri).resolve()  # a link stays, and what it leads to is replaced
        if path.exists() and not path.is_file():
            raise StorageError(f"{uri} is no regular file: choose another path")
        temp = path.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"
        raw = _create(temp, uri)
        if path.parent not in self._swept:  # once a folder: it may hold very many files
            self._swept.add(path.parent)
            _sweep(path.parent)
        try:
            file = io.BufferedWriter(raw, 1 << 20)
            yield file
            file.flush()
            with _translated(uri):
                os.fsync(raw.fileno())
                raw.close()
                temp.replace(path)
        except BaseException:
            raw.close()  # first, or the buffer would try to flush once more
            temp.unlink(missing_ok=True)
            raise

    def delete(self, uri: str) -> None:
        with _translated(uri):
            path_of(uri).unlink(missing_ok=True)


class _File(io.FileIO):
    """Translates the errors of its own writes, and not others that a writer's block may raise."""

    uri = ""

    def write(self, data: Any) -> int:
        with _translated(self.uri):
            return super().write(data) or 0


def _create(temp: Path, uri: str) -> _File:
    """Opens `temp`, and makes its folder where it is absent; says of a folder that cannot be made why."""
    with _translated(uri):
        try:
            temp.parent.mkdir(parents=True, exist_ok=True)
            raw = _File(temp, "xb")
        except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
            why = error.strerror if error.filename == str(temp.parent) else f"{error.filename}: {error.strerror}"
            raise StorageError(f"{uri}: the folder {temp.parent} cannot be made: {why}: choose another path") from error
    raw.uri = uri
    with suppress(OSError):  # not every file system has locks
        fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return raw


def _sweep(folder: Path) -> None:
    """Removes the temporary files of writers that were killed. Whoever lives has theirs locked."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if _TEMP.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) and _dead(entry.path):
                Path(entry.path).unlink(missing_ok=True)


def _dead(path: str) -> bool:
    """Whether nobody holds the lock, and the moment between a file's making and its locking is over."""
    with suppress(OSError), open(path, "rb+") as file:  # noqa: PTH123
        age = time.time() - os.fstat(file.fileno()).st_mtime
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return age > LOCKLESS_DEAD_SECONDS
        return age > DEAD_SECONDS
    return False


def _walk(folder: str, wanted: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Files below `folder` whose path starts with `wanted`. Links are followed, but not in circles."""
    here = os.path.realpath(folder)
    if here in above:
        return
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith(TEMP_PREFIX):
            continue
        try:
            facts = entry.stat()
        except FileNotFoundError:
            continue  # a broken link, or gone since the folder was read
        if stat_bits.S_ISDIR(facts.st_mode):
            below = entry.path + "/"
            if below.startswith(wanted) or wanted.startswith(below):
                yield from _walk(below, wanted, (*above, here))
        elif stat_bits.S_ISREG(facts.st_mode) and entry.path.startswith(wanted):
            yield entry.path, facts


def _info(path: str, facts: os.stat_result) -> ObjectInfo:
    return ObjectInfo("file://" + path, facts.st_size, modified=facts.st_mtime)


def _check_unchanged(info: ObjectInfo, facts: os.stat_result) -> None:
    size, modified = facts.st_size, facts.st_mtime
    if info.size not in (None, size) or info.modified not in (None, modified):
        raise ChangedError(
            f"{info.uri} was changed after it was planned ({info.size} bytes then, {size} now): list and plan again"
        )


def _read_exactly(file: io.FileIO, length: int) -> bytes:
    """`length` bytes, fewer at the end of the file; one system call and no copy for all but the largest."""
    data = file.read(length)
    while len(data) < length and (more := file.read(length - len(data))):
        data += more
    return data


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """The table of the operating system's errors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectMissingError(f"{uri} does not exist: check the path") from error
    except (IsADirectoryError, FileExistsError) as error:
        raise StorageError(f"{uri}: {error.filename} is in the way: choose another path") from error
    except PermissionError as error:
        raise AccessError(
            f"{uri}: no permission for {error.filename}: allow this user to use it, or choose another path"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"{uri}: the disk is full: free some space, or choose another folder") from error
        raise StorageError(f"{uri}: {error.strerror or error}: check the disk and the path") from error
