"""One entry of the cache as a file: a part's decoded matrix, written once, checked, then mapped.

    byte 0     magic (7 bytes) and the format's version (1)
         8     length of the footer, and its CRC-32; zeros from 16 on
      4096     the matrix, row by row
       end     footer, JSON: key, uri, shape, dtype, checksum, facts

The first 4096 bytes are written last, so that blocks can be added as they are parsed. Every byte is checked. That finds
faults of disks and programs; it is not made to withstand a person who forges entries.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cabrank.errors import DataError

Matrix = npt.NDArray[np.floating]
Facts = Mapping[str, Any]

FORMAT = 1
MAGIC = b"cabrank" + bytes([FORMAT])
PREFIX = struct.Struct("<8sII")
START = 4096
DTYPES = (
    np.dtype(np.float64).str,
    np.dtype(np.float32).str,
)  # with this machine's byte order: another one's is foreign

SUM_WORDS = 509
"""Words that are summed side by side. A prime, so that no page lies on the same columns as its neighbours: pages that
changed places change the sums."""
CHUNK_BYTES = SUM_WORDS * 8 * 256
"""1 MiB: summed while still in the processor's cache, and little to touch anew for a small part."""


class CorruptEntryError(DataError):
    """A cache file that is truncated, changed, foreign, or of another version; the message says which."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names one entry; made by `part_key`."""

    digest: str
    """64 hexadecimal digits."""
    uri: str
    """The part's, for messages."""


def part_key(uri: str, pin: str, columns: Sequence[str], nulls: str, dtype: str, parser: str) -> Key | None:
    """The key of a part's matrix: everything its values follow from. `pin` is the ETag, or size and time of change;
    `parser` the parser's name and version. None, not to be cached, for a part without a pin and for a weak ETag
    (`W/…`), which does not promise the same bytes."""
    if not pin or pin.startswith("W/"):
        return None
    said = json.dumps([FORMAT, uri, pin, list(columns), nulls, dtype, parser])
    return Key(hashlib.sha256(said.encode()).hexdigest(), uri)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the cache gives back for one part."""

    matrix: Matrix
    """[n, C], mapped copy-on-write: a change stays in this process and never reaches the file."""
    facts: dict[str, Any]
    """What was given to `put`."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What an entry says of itself."""

    digest: str
    uri: str
    shape: tuple[int, int]
    dtype: str
    checksum: str
    facts: dict[str, Any]

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the matrix."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Checksum:
    """Column sums of 64-bit words, hashed chunk by chunk: as fast as memory, where CRC-32 takes 3 and BLAKE2 15 times
    as long. A flipped bit, a changed word, a page of zeros and pages out of order all change it."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, data: npt.NDArray[np.uint8]) -> None:
        """The next bytes; each call but the last gives `CHUNK_BYTES` of them."""
        whole = len(data) - len(data) % (SUM_WORDS * 8)
        sums = data[:whole].view(np.uint64).reshape(-1, SUM_WORDS).sum(axis=0)  # [SUM_WORDS], modulo 2^64
        self._hash.update(sums.data)
        self._hash.update(data[whole:].data)

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return self._hash.hexdigest()


def entry_bytes(matrix_bytes: int) -> int:
    """Room to set aside for an entry; a page more than it takes, as long as its facts are few."""
    return START + matrix_bytes + 4096


class EntryWriter:
    """Writes one entry into an empty file: blocks by `add`, then `finish`.

    No fsync: after a power cut the checksum tells what reached the disk, and the part is fetched anew.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._checksum = Checksum()
        self._buffer, self._filled = np.empty(CHUNK_BYTES, np.uint8), 0
        file.seek(START)

    def add(self, matrix: Matrix) -> None:
        """The next rows, row-major."""
        data = matrix.reshape(-1).view(np.uint8)
        while len(data):
            if not self._filled and len(data) >= CHUNK_BYTES:
                self._write(data[:CHUNK_BYTES])
                data = data[CHUNK_BYTES:]
                continue
            taken = data[: CHUNK_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            data = data[len(taken) :]
            if self._filled == CHUNK_BYTES:
                self._flush()

    def finish(self, digest: str, uri: str, shape: tuple[int, int], dtype: str, facts: Facts) -> None:
        """The end of the matrix: footer, then the start that makes the file an entry."""
        self._flush()
        named = {"key": digest, "uri": uri, "shape": shape, "dtype": dtype}
        footer = json.dumps({**named, "checksum": self._checksum.hexdigest(), "facts": dict(facts)}).encode()
        self._file.write(footer)
        self._file.truncate()  # more room may have been set aside
        self._file.seek(0)
        self._file.write(_start_block(len(footer), zlib.crc32(footer)))
        self._file.flush()

    def _flush(self) -> None:
        if self._filled:  # an empty chunk would change the checksum
            self._write(self._buffer[: self._filled])
            self._filled = 0

    def _write(self, chunk: npt.NDArray[np.uint8]) -> None:
        self._checksum.update(chunk)
        self._file.write(chunk.data)


def _start_block(footer_bytes: int, crc: int) -> bytes:
    return PREFIX.pack(MAGIC, footer_bytes, crc).ljust(START, b"\0")


def _no_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # non-blocking: a pipe of this name must not hold us up


def open_file(path: Path) -> BinaryIO:
    """Opens an entry for reading; a link or anything but a regular file is a `CorruptEntryError`."""
    try:
        file = open(path, "rb", buffering=0, opener=_no_links)  # noqa: SIM115  (Path.open takes no opener)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise CorruptEntryError(f"it is no regular file ({error.strerror})") from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CorruptEntryError("it is no regular file")
    return file


def read_footer(file: BinaryIO) -> Footer:
    """What an entry says of itself, its own checksum and sizes being right; `CorruptEntryError` otherwise."""
    size = os.fstat(file.fileno()).st_size
    start = os.pread(file.fileno(), START, 0)
    if len(start) < START or not start.startswith(MAGIC):
        raise CorruptEntryError(f"it does not start as an entry of format {FORMAT} does")
    _, length, crc = PREFIX.unpack_from(start)
    text = os.pread(file.fileno(), length, size - length) if length <= size - START else b""
    if start != _start_block(length, crc) or len(text) != length or zlib.crc32(text) != crc:
        raise CorruptEntryError("its start or its end is damaged or missing")
    footer = _parse_footer(text)
    if size != (right := START + footer.matrix_bytes + length):
        raise CorruptEntryError(f"it has {size} bytes and should have {right}")
    return footer


def _parse_footer(text: bytes) -> Footer:
    try:
        said = json.loads(text)
        rows, columns = map(int, said["shape"])
        footer = Footer(said["key"], said["uri"], (rows, columns), said["dtype"], said["checksum"], dict(said["facts"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptEntryError("its footer is not one that we write") from error
    if footer.dtype not in DTYPES or min(footer.shape) < 0:
        raise CorruptEntryError(f"it holds {footer.dtype} of shape {footer.shape}")
    return footer


def check_matrix(file: BinaryIO, footer: Footer) -> None:
    """Reads the matrix and compares its checksum. By read() rather than the mapping: where the disk fails, that is an
    OSError, and not the end of the process by SIGBUS."""
    checksum = Checksum()
    buffer = np.empty(min(CHUNK_BYTES, footer.matrix_bytes), np.uint8)
    for start in range(0, footer.matrix_bytes, CHUNK_BYTES):
        chunk = buffer[: min(CHUNK_BYTES, footer.matrix_bytes - start)]
        if os.preadv(file.fileno(), [chunk.data], START + start) != len(chunk):
            raise CorruptEntryError("it became shorter while it was read")
        checksum.update(chunk)
    if checksum.hexdigest() != footer.checksum:
        raise CorruptEntryError("its matrix is not the one that was stored: the checksum differs")


def map_matrix(file: BinaryIO, footer: Footer) -> Matrix:
    """The matrix [n, C], writable, each changed page private to this process. Stays readable when the file is
    unlinked."""
    mapped = mmap.mmap(file.fileno(), START + footer.matrix_bytes, access=mmap.ACCESS_COPY)
    return np.ndarray(footer.shape, footer.dtype, buffer=mapped, offset=START)
