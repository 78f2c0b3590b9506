"""The decoded matrices of parts, on disk: parsed once, then mapped by every process of a node that reads the same data.

    with cache.filling(key) as entry:            # one process of the node parses a part; others wait, and find it done
        if entry is None:
            …fetch and parse…
            cache.put(key, matrix, facts)        # or block by block: cache.begin(…), .add(…), .commit(facts)

Right values follow from a temporary file, a checksum and an atomic rename. Locks only save double work, so a file
system that has none (NFS, at times) costs time and nothing else. Whatever goes wrong with the folder, reading goes on
without it. Only regular files and links in the folder itself that have our names are ever removed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cabrank.data.cache_entry import (
    DTYPES,
    CorruptEntryError,
    Entry,
    Facts,
    Key,
    Matrix,
    check_matrix,
    entry_bytes,
    map_matrix,
    open_file,
    part_key,
    read_footer,
)
from cabrank.data.cache_fill import Fill
from cabrank.data.cache_folder import CacheFolder, default_folder, local_folder
from cabrank.data.cache_room import Uses, victims
from cabrank.errors import ConfigError

__all__ = ["Counters", "DecodedCache", "Entry", "Fill", "Key", "part_key"]

log = logging.getLogger("cabrank")
WAIT_SECONDS = 60.0
"""Longest wait for another process's fill: then we parse the part ourselves."""
_said: set[tuple[str, str]] = set()


@dataclass(slots=True)
class Counters:
    """What this process did with the cache so far."""

    hits: int = 0
    misses: int = 0
    """Lookups that found nothing, or nothing usable."""
    stored: int = 0
    streamed: int = 0
    """Matrices that were not stored: too large, needed too far ahead, or the disk would not take them."""
    evicted: int = 0
    corrupt: int = 0
    bytes_read: int = 0
    """Bytes of the matrices that hits gave back."""
    bytes_stored: int = 0


class DecodedCache:
    """A folder of decoded matrices. Safe to share between threads and usable in a forked child; a pickled copy is a new
    cache on the same folder.

    `folder` is made when the first entry is stored; None takes `default_folder()`. Entries and fills in progress take
    at most `limit_bytes` together; None takes half of what is free on the folder's disk, what the cache holds
    included. A matrix larger than that is not stored. Keep the folder on a disk of the node: on NFS, an entry that
    another machine evicts may vanish under a reader.
    """

    def __init__(self, folder: str | Path | None = None, limit_bytes: int | None = None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ConfigError(f"the cache's limit is {limit_bytes} bytes: it must be 0 or more")
        self.folder = local_folder(folder) if folder is not None else default_folder()
        self.counters = Counters()
        self._limit_bytes = limit_bytes
        self._files = CacheFolder(self.folder)
        self._opened = time.time()
        self._uses = Uses()
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._storing = True
        self._mutex, self._mutex_pid = threading.Lock(), os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedCache, (self.folder, self._limit_bytes)

    def needed(self, order: Iterable[Key | None]) -> None:
        """Says which entries will be read from now on, in this order, as far as it is known: the rest of this epoch,
        and the next one's order after it; of all ranks on this node, where known. Replaces what was said before."""
        digests = [key.digest for key in order if key]
        with self._locked():
            self._uses.plan(digests)

    def get(self, key: Key | None) -> Entry | None:
        """The entry, or None: not there, or not usable. A damaged one is removed and reported, so that `put` can
        replace it. The first look at an entry in a process reads all of it, to verify its checksum."""
        return self._count(key, self._find(key)) if key else None

    @contextmanager
    def filling(self, key: Key | None, wait_seconds: float = WAIT_SECONDS) -> Iterator[Entry | None]:
        """`get`, and when there is none, its place: the first process to come enters at once, with None, to parse and
        `put`. Others wait until it is done, at most `wait_seconds`, and enter with its entry, or together with None.
        Leave it before the matrix is used: a training step inside would make the other ranks wait."""
        if key is None:
            yield None
        elif (entry := self._find(key)) or not self._storing:
            yield self._count(key, entry)
        else:
            with self._files.fill_lock(key.digest, wait_seconds):
                yield self._count(key, self._find(key))

    def put(self, key: Key | None, matrix: Matrix, facts: Facts) -> bool:
        """Stores a whole matrix; see `begin` and `Fill.commit`."""
        with self.begin(key, len(matrix), matrix.shape[-1], matrix.dtype.str) as fill:
            fill.add(matrix)
            return fill.commit(facts)

    def begin(self, key: Key | None, rows: int, columns: int, dtype: str) -> Fill:
        """Starts to store a part's matrix, about [rows, columns], float64 or float32: sets room aside. What the disk
        does never raises an error, here or in the `Fill`, which then takes blocks and stores nothing."""
        kind = np.dtype(dtype)
        if kind.str not in DTYPES:
            raise TypeError(f"a matrix of {kind} is not cached: float64 or float32")
        temp = self._start(key, entry_bytes(rows * columns * kind.itemsize)) if key else None
        return Fill(key, columns, kind.str, temp=temp, files=self._files, done=self._published, failed=self._failed)

    def limit(self) -> int:
        """Bytes that the cache may take on disk."""
        with self._locked():
            if self._limit_bytes is None:
                self._limit_bytes = (self._files.free_bytes() + self._files.scan().total) // 2
            return self._limit_bytes

    def _find(self, key: Key) -> Entry | None:
        try:
            return self._open(key)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except CorruptEntryError as error:
            self._drop(key, error)
        except OSError as error:
            path = self._files.entry(key.digest)
            self._once("disk", f"cannot read {path}: {error}; reading {key.uri} without the cache")
        return None

    def _count(self, key: Key, entry: Entry | None) -> Entry | None:
        with self._locked() as counters:
            if entry is None:
                counters.misses += 1
            else:
                counters.hits += 1
                counters.bytes_read += entry.matrix.nbytes
                self._uses.used(key.digest)
        return entry

    def _open(self, key: Key) -> Entry:
        with open_file(self._files.entry(key.digest)) as file:
            footer = read_footer(file)
            if footer.digest != key.digest:
                raise CorruptEntryError("it is another part's entry")
            facts = os.fstat(file.fileno())
            seen = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if self._checked.get(key.digest) != seen:
                check_matrix(file, footer)
                self._checked[key.digest] = seen
            with suppress(OSError):  # not ours, or read-only: then its last use stays unknown
                os.utime(file.fileno(), ns=(time.time_ns(), facts.st_mtime_ns))
            return Entry(map_matrix(file, footer), footer.facts)

    def _drop(self, key: Key, error: CorruptEntryError) -> None:
        path = self._files.entry(key.digest)
        with self._locked() as counters:
            counters.corrupt += 1
            done = "removed" if self._files.remove(path.name) else "and cannot be removed"
        log.warning("cache entry %s of %s is unusable, %s: %s; the part is read anew", path, key.uri, done, error)

    def _start(self, key: Key, size: int) -> BinaryIO | None:
        with self._locked():
            self._uses.used(key.digest)  # this one: what counts is the use after it
        try:
            if self._files.entry(key.digest).exists():
                return None  # another process was faster
            temp = self._make_room(key, size) if self._storing else None
        except OSError as error:
            self._failed(error)
            return None
        with self._locked() as counters:
            counters.streamed += temp is None
        return temp

    def _make_room(self, key: Key, size: int) -> BinaryIO | None:
        """An empty temporary file that counts as `size` bytes from now on, or None when the matrix should stay out."""
        limit = self.limit()
        if size > limit:
            self._once(
                "large", f"{key.uri} takes {size} bytes decoded, and the cache at most {limit}: it is not cached"
            )
            return None
        self._files.make()
        with self._locked() as counters, self._files.room_lock():
            listing = self._files.scan()
            excess = listing.total + size - limit
            leaving = victims(listing.entries, excess, self._uses, key.digest, self._opened)
            if leaving is None:
                return None
            for digest in leaving:
                counters.evicted += self._files.remove(self._files.entry(digest).name)
            return self._files.temp(key.digest, size)

    def _failed(self, error: OSError) -> None:
        """An error of the disk turns storing off in this process, with one warning."""
        with self._locked() as counters:
            counters.streamed += 1
        self._storing = False
        why = f"cannot store in the cache {self.folder}: {error}; reading goes on without storing"
        self._once("disk", f"{why}. Free disk space, or give another cache_dir")

    def _published(self, key: Key, written: os.stat_result, nbytes: int) -> None:
        self._checked[key.digest] = (written.st_ino, written.st_size, written.st_mtime_ns)
        with self._locked() as counters:
            counters.stored += 1
            counters.bytes_stored += nbytes

    def _once(self, kind: str, message: str) -> None:
        """One warning of a kind, folder and process."""
        if (kind, str(self.folder)) not in _said:
            _said.add((kind, str(self.folder)))
            log.warning("%s", message)

    @contextmanager
    def _locked(self) -> Iterator[Counters]:
        if self._mutex_pid != os.getpid():  # forked: a thread that we do not have may have held it
            self._mutex, self._mutex_pid = threading.Lock(), os.getpid()
        with self._mutex:
            yield self.counters
