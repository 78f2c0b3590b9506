"""A Parquet part as a file: what pyarrow reads it through, which bytes of it go together, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cabrank.data.fetch import Buffer, Fetcher
from cabrank.data.listing import Part
from cabrank.errors import DataError

HOLE_BYTES = 1 << 18  # unwanted bytes between two ranges that cost less than another request


class RangedFile:
    """A part as pyarrow reads it, on one thread: from ranges that are held, or by a pinned read of its own."""

    closed = False

    def __init__(self, part: Part, size: int, fetcher: Fetcher, held: Sequence[tuple[int, Buffer]] = ()) -> None:
        self._part, self._size, self._fetcher = part, size, fetcher
        self._held = [(start, memoryview(data)) for start, data in held]
        self._at = 0

    def read(self, size: int) -> Buffer:
        """The next `size` bytes, fewer at the end."""
        start = self._at
        self._at = stop = min(start + size, self._size)
        for base, data in self._held:
            if base <= start and stop <= base + len(data):
                return data[start - base : stop - base]
        return self._fetcher.fetch_range(self._part.info, start, stop - start) if stop > start else b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of files."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """As of files."""
        return self._at

    def readable(self) -> bool:
        """As of files."""
        return True

    def seekable(self) -> bool:
        """As of files."""
        return True

    def close(self) -> None:
        """Gives up what is held."""
        self._held = []
        self.closed = True


def merge(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ordered spans, those with small holes between them as one."""
    merged: list[tuple[int, int]] = []
    for start, stop in spans:
        if merged and start <= merged[-1][1] + HOLE_BYTES:
            start, stop = merged[-1][0], max(stop, merged.pop()[1])
        merged.append((start, stop))
    return merged


def check_magic(tail: Buffer, uri: str) -> None:
    """`DataError` unless a file ends as Parquet that can be read."""
    end = bytes(tail[-8:])
    if end.endswith(b"PARE"):
        raise DataError(f"{uri}: its footer is encrypted, and there are no keys here; write it without encryption")
    if len(end) < 8 or not end.endswith(b"PAR1"):
        fault = f"it ends in {end[-4:]!r} and not as Parquet does: cut off, or another format"
        raise DataError(f"{uri}: {fault}; make it again")


@contextmanager
def parquet_errors(uri: str) -> Iterator[None]:
    """pyarrow's errors as `DataError`; ours, from reads that it asked for, pass."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        encrypted = "encrypt" in words or "decrypt" in words
        remedy = "write it without encryption" if encrypted else "it is damaged: make it again"
        raise DataError(f"{uri}: pyarrow cannot read this Parquet file: {words}; {remedy}") from error
