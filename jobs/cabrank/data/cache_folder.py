"""The cache's folder: our names in it, locks, temporary files, and what may be removed.

    .cabrank-cache                     marks the folder as a cache of ours
    <64 hex>.cabrank                   an entry
    <64 hex>.<16 hex>.cabrank-temp     an entry being written; left behind by a process that was killed
    <64 hex>.cabrank-lock              held by who fills that entry
    room.cabrank-lock                  held, briefly, by who makes room

What has another name is not touched, and no link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cabrank.data.cache_room import Stored
from cabrank.errors import ConfigError

MARKER = ".cabrank-cache"
OURS = re.compile(r"(?:[0-9a-f]{64}|room)\.cabrank-lock|[0-9a-f]{64}(?:\.[0-9a-f]{16}\.cabrank-temp|\.cabrank)")
ENTRY, TEMP, LOCK = ".cabrank", ".cabrank-temp", ".cabrank-lock"
DEAD_SECONDS = 60.0
"""A temporary file without a lock is younger than this only between its making and its locking."""
LOCKLESS_DEAD_SECONDS = 86400.0
"""The same where the file system has no locks, and nothing tells whether its writer lives."""
ROOM_WAIT_SECONDS = 5.0
"""Making room takes milliseconds; a process that was stopped in it must not stop the others."""
QUICK_SCAN_SECONDS = 0.001
"""Time to look through some hundred entries: not worth saving."""


def default_folder() -> Path:
    """`cabrank` in XDG_CACHE_HOME or ~/.cache; where neither can be written, as in many containers, a folder of this
    user alone under the temporary directory."""
    for base in _homes():
        nearest = next(path for path in (base / "cabrank", base, *base.parents) if os.path.lexists(path))
        if os.access(nearest, os.W_OK | os.X_OK):
            return base / "cabrank"
    return _private(Path(tempfile.gettempdir()) / f"cabrank-cache-{os.geteuid()}")


def local_folder(given: str | Path) -> Path:
    """A `cache_dir` as an absolute path; `ConfigError` for a URI, since entries are mapped into memory."""
    if "://" in str(given):
        raise ConfigError(f"cache_dir is {str(given)!r}: it must be a local folder, as a path")
    return Path(given).expanduser().absolute()


def _homes() -> Iterator[Path]:
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # noqa: PTH117  (the standard: a relative one is ignored)
        yield Path(xdg)
    with suppress(RuntimeError):  # no HOME, and a user that the container does not know
        yield Path.home() / ".cache"


def _private(folder: Path) -> Path:
    """`folder`, made for this user alone; a `ConfigError` when somebody else made it first: they could plant
    entries."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise ConfigError(f"{folder} belongs to somebody else: set XDG_CACHE_HOME, or give cache_dir")
    return folder


@dataclass(slots=True)
class Listing:
    """What lay in the folder at one moment."""

    entries: dict[str, Stored]
    """By digest."""
    temp_bytes: int = 0
    """Of fills in progress."""

    @property
    def total(self) -> int:
        """Bytes of entries and fills."""
        return self.temp_bytes + sum(entry.size for entry in self.entries.values())


class CacheFolder:
    """File operations of the cache, none of which leaves the folder `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listing, self._stale_at = Listing({}), 0.0

    def entry(self, digest: str) -> Path:
        """Where an entry lies."""
        return self.path / f"{digest}{ENTRY}"

    @property
    def marker(self) -> Path:
        """The file that says that the folder is a cache."""
        return self.path / MARKER

    def marked(self) -> bool:
        """Whether the folder is a cache of ours."""
        return self.marker.is_file()

    def names(self) -> Iterator[tuple[str, os.stat_result]]:
        """Our regular files and links in the folder, and what lstat says of them."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as listing:
            for item in listing:
                if OURS.fullmatch(item.name) and not item.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield item.name, item.stat(follow_symlinks=False)

    def scan(self) -> Listing:
        """Entries and fills in progress; sweeps what killed processes left. Tens of thousands of entries take a while
        to look through: then what was found is believed for 20 times as long, so that looking takes at most a
        twentieth."""
        started = time.monotonic()
        if started >= self._stale_at:
            self._listing = self._look()
            took = time.monotonic() - started
            self._stale_at = started + (21 * took if took > QUICK_SCAN_SECONDS else 0)
        return self._listing

    def _look(self) -> Listing:
        listing = Listing({})
        for name, facts in self.names():
            if name.endswith(ENTRY):
                listing.entries[name.removesuffix(ENTRY)] = Stored(facts.st_size, facts.st_atime)
            elif name.endswith(TEMP) and not (self.dead(name) and self.remove(name)):
                listing.temp_bytes += facts.st_size
        return listing

    def remove(self, name: str) -> bool:
        """Unlinks one of our names; whether it was there and went. Who has it mapped reads on."""
        if not OURS.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of the cache")
        self._listing.entries.pop(name.removesuffix(ENTRY), None)
        try:
            (self.path / name).unlink()
        except OSError:
            return False
        return True

    def free_bytes(self) -> int:
        """What this user may still write to the folder's disk."""
        nearest = next(path for path in (self.path, *self.path.parents) if path.is_dir())
        return shutil.disk_usage(nearest).free

    def make(self) -> None:
        """The folder and its marker."""
        self.path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))

    def temp(self, digest: str, size: int) -> BinaryIO:
        """A new file of `size` bytes, without disk blocks yet; locked as long as it is open, where there are locks."""
        path = self.path / f"{digest}.{secrets.token_hex(8)}{TEMP}"
        file = path.open("xb")
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(size)
        except BaseException:
            file.close()
            self.remove(path.name)
            raise
        self._listing.temp_bytes += size
        return file

    def dead(self, name: str, seconds: float = DEAD_SECONDS) -> bool:
        """Whether a temporary file's writer is gone: nobody holds its lock. A process id would say nothing across
        containers."""
        try:
            with _open_lock(self.path / name) as file:
                age = time.time() - os.fstat(file.fileno()).st_mtime
                with suppress(BlockingIOError):
                    return age > (seconds if _try_lock(file, fcntl.LOCK_EX) else LOCKLESS_DEAD_SECONDS)
        except OSError as error:
            return error.errno == errno.ELOOP  # a link: nothing of ours was ever written to it
        return False

    @contextmanager
    def fill_lock(self, digest: str, wait_seconds: float) -> Iterator[None]:
        """Held by the first to come. Later ones wait until it is free, and go on side by side: they find the
        entry, or each must parse, and had better do so at the same time."""
        name = f"{digest}{LOCK}"
        with self._lock_file(name) as file:
            if file is None:
                yield
            elif _wait_for_lock(file, fcntl.LOCK_EX, 0):
                try:
                    yield
                finally:
                    self.remove(name)  # before it is unlocked: those who wait have it open
            else:
                _wait_for_lock(file, fcntl.LOCK_SH, wait_seconds)  # shared: all who waited enter at once
                yield

    @contextmanager
    def room_lock(self) -> Iterator[None]:
        """Held while room is made, so that two processes do not both count on the same bytes."""
        with self._lock_file(f"room{LOCK}") as file:
            if file is not None:
                _wait_for_lock(file, fcntl.LOCK_EX, ROOM_WAIT_SECONDS)
            yield

    @contextmanager
    def _lock_file(self, name: str) -> Iterator[BinaryIO | None]:
        """Opens one of our lock files, and unlocks it in the end; None where that fails: `put` will say why."""
        try:
            self.make()
            file = _open_lock(self.path / name, os.O_CREAT)
        except OSError:
            yield None
            return
        with file:
            try:
                yield file
            finally:
                _unlock(file)


def _open_lock(path: Path, flags: int = 0) -> BinaryIO:
    def opener(name: str, mode: int) -> int:
        return os.open(name, mode | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)

    return open(path, "rb+", buffering=0, opener=opener)


def _unlock(file: BinaryIO) -> None:
    """Unlocks before closing: a child that was forked meanwhile has the file open, too, and would keep the lock."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


def _try_lock(file: BinaryIO, kind: int) -> bool:
    """True when locked, False where there are no locks; `BlockingIOError` when another holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _wait_for_lock(file: BinaryIO, kind: int, seconds: float) -> bool:
    """Whether it was to be had in time; True at once where there are no locks."""
    until = time.monotonic() + seconds
    pause = 0.001
    while True:
        with suppress(BlockingIOError):
            _try_lock(file, kind)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
