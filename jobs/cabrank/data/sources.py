"""A part's decoded bytes, by offset: read where they lie, or fetched whole, or decompressed on their way."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cabrank.data.fetch import Fetcher
from cabrank.data.listing import Part
from cabrank.errors import DataError

PACKED_BYTES = 1 << 20
"""Of a compressed file, read at a time."""


class Source(Protocol):
    """A part's decoded bytes, by offset."""

    def window(self, start: int, size: int) -> memoryview:
        """Bytes from `start` on: `size` of them, fewer only where the part ends. `start` never goes back."""


@dataclass
class RangeSource:
    """An object of known size, each window a read of its own, of the planned version."""

    part: Part
    fetcher: Fetcher

    def window(self, start: int, size: int) -> memoryview:
        """See `Source`."""
        size = min(size, (self.part.size or 0) - start)
        return memoryview(self.fetcher.fetch_range(self.part.info, start, size) if size > 0 else b"")


@dataclass
class BufferSource:
    """An object that was fetched whole."""

    data: memoryview

    def window(self, start: int, size: int) -> memoryview:
        """See `Source`."""
        return self.data[start : start + size]


class Packed:
    """What decompressors read from: the compressed bytes from beginning to end."""

    def __init__(self, source: Source, uri: str) -> None:
        self.uri = uri
        self.at = 0
        self.closed = False
        self._source = source

    def read(self, size: int = PACKED_BYTES) -> bytes:
        """The next bytes; none at the end."""
        data = bytes(self._source.window(self.at, min(size, PACKED_BYTES)))
        self.at += len(data)
        return data

    def close(self) -> None:
        """As of files; pyarrow does it."""
        self.closed = True


class Unpack(Protocol):
    """A decompressor at work."""

    def read(self, size: int, /) -> bytes | None:
        """At most `size` more bytes, possibly none yet; None at the end. `DataError` where the compressed bytes are
        damaged or end too early."""


@dataclass
class Gunzip:
    """gzip; members may follow one another and end anywhere in a row, and zero bytes may pad them."""

    packed: Packed
    stream: zlib._Decompress | None = None

    def read(self, size: int) -> bytes | None:
        """See `Unpack`."""
        if self.stream is None or self.stream.eof:
            rest = self.stream.unused_data if self.stream else b""
            compressed = rest or self.packed.read()
            member = compressed.lstrip(b"\0")
            if not member:
                self.stream = None
                return b"" if compressed else None
            self.stream = zlib.decompressobj(wbits=31)
        else:
            member = self.stream.unconsumed_tail or self.packed.read()
        try:
            data = self.stream.decompress(member, size)
        except zlib.error as error:
            where = f"{self.packed.uri}: no gzip data near byte {self.packed.at}"
            raise DataError(f"{where}: {error}; make the file again") from error
        if not data and not member and not self.stream.eof:
            uri = self.packed.uri
            raise DataError(f"{uri}: the gzip file ends in the middle; it was not written whole: make it again")
        return data


class Unzstd:
    """Zstandard, one frame or many, by pyarrow's own decompressor."""

    def __init__(self, packed: Packed) -> None:
        import pyarrow as pa

        self._uri = packed.uri
        self._stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")

    def read(self, size: int) -> bytes | None:
        """See `Unpack`."""
        try:
            return bytes(self._stream.read(size)) or None
        except OSError as error:
            cut = "Truncated" in str(error)
            fault = "ends in the middle; it was not written whole" if cut else f"is damaged, or none: {error}"
            raise DataError(f"{self._uri}: the zstd file {fault}: make it again") from error


@dataclass
class UnpackedSource:
    """A compressed part, decompressed as it is read."""

    unpack: Unpack
    base: int = 0
    buffer: memoryview = field(default_factory=lambda: memoryview(b""))

    def window(self, start: int, size: int) -> memoryview:
        """See `Source`; errors as of `Unpack`."""
        rest = bytearray(self.buffer[start - self.base :])
        while len(rest) < size and (chunk := self.unpack.read(size - len(rest))) is not None:
            rest += chunk
        self.base, self.buffer = start, memoryview(rest)
        return memoryview(bytes(self.buffer[:size]))


UNPACK: Mapping[str, Callable[[Packed], Any]] = {".gz": Gunzip, ".zst": Unzstd}
"""By the end of the name."""


def unpacked(source: Source, part: Part) -> Source:
    """The decoded bytes of a part's file: the file's own, or what its name's ending says is in it."""
    for ending, unpack in UNPACK.items():
        if part.name.lower().endswith(ending):
            return UnpackedSource(unpack(Packed(source, part.uri)))
    return source
