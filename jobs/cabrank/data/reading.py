"""Parts → blocks of rows, in order: bytes fetched ahead, blocks parsed in parallel, a bounded number of them in flight.

    part ─► source ─► cut at newlines ─► parse on a thread ─► Block ─► … in the order of the parts and of their rows

One thread a core parses (pyarrow lets go of the interpreter meanwhile); the thread that iterates cuts the blocks. A
file is read block by block where it lies; an object is fetched whole, ahead of its turn, within the fetcher's budget.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cabrank.data.fetch import Fetcher
from cabrank.data.listing import Part
from cabrank.data.parse import (
    BLOCK_BYTES,
    HEADER_BYTES,
    QUOTE,
    BlockError,
    NullPolicy,
    Parsed,
    Schema,
    parse_block,
    read_schema,
    split_header,
)
from cabrank.errors import DataError, NoDataError
from cabrank.store import Store

TAIL_BYTES = 1 << 16  # a newline is looked for this far before a block's end, then in all of it


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one part. The last block of a part may have no rows; it says how many the part has in all."""

    place: int
    """Of the part, in the sequence that was asked for."""
    part: Part
    first_row: int
    """Of this block in its part, counted from 0."""
    parsed: Parsed
    last: bool

    @property
    def end_row(self) -> int:
        """Behind the last row; of the last block, the number of rows in the part."""
        return self.first_row + self.parsed.rows


class Source(Protocol):
    """A part's decoded bytes, by offset."""

    def window(self, start: int, size: int) -> memoryview:
        """Bytes from `start` on: `size` of them, fewer only where the part ends. `start` never goes back."""


@dataclass
class FileSource:
    """A local file, read where it lies: each window is one read, checked against the planned size and time."""

    part: Part
    store: Store

    def window(self, start: int, size: int) -> memoryview:
        """See `Source`."""
        size = min(size, (self.part.size or 0) - start)
        return memoryview(self.store.read(self.part.info, start, size) if size > 0 else b"")


@dataclass
class BufferSource:
    """An object that was fetched whole."""

    data: memoryview

    def window(self, start: int, size: int) -> memoryview:
        """See `Source`."""
        return self.data[start : start + size]


@dataclass
class GzipSource:
    """A gzip file, decompressed as it is read; members may follow one another and end anywhere in a row."""

    inner: Source
    uri: str
    read: int = 0
    base: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    stream: zlib._Decompress | None = None

    def window(self, start: int, size: int) -> memoryview:
        """See `Source`; `DataError` where the compressed bytes are damaged or end too early."""
        rest = bytearray(memoryview(self.buffer)[start - self.base :])
        while len(rest) < size and (chunk := self._inflate(size - len(rest))) is not None:
            rest += chunk
        self.base, self.buffer = start, rest
        return memoryview(bytes(memoryview(rest)[:size]))

    def _inflate(self, size: int) -> bytes | None:
        """At most `size` more bytes, possibly none yet; None at the end of the file."""
        if self.stream is None or self.stream.eof:
            compressed = self._more()
            member = compressed.lstrip(b"\0")  # zero bytes may pad between members and behind the last
            if not member:
                return b"" if compressed else None
            self.stream = zlib.decompressobj(wbits=31)
        else:
            member = self.stream.unconsumed_tail or self._more()
        try:
            data = self.stream.decompress(member, size)
        except zlib.error as error:
            raise DataError(f"{self.uri}: no gzip data near byte {self.read}: {error}; make the file again") from error
        if self.stream.eof:
            self.read -= len(self.stream.unused_data)
        elif not data and not member:
            raise DataError(f"{self.uri}: the gzip file ends in the middle; it was not written whole: make it again")
        return data

    def _more(self) -> bytes:
        compressed = bytes(self.inner.window(self.read, BLOCK_BYTES // 4))
        self.read += len(compressed)
        return compressed


def open_source(part: Part, store: Store, fetcher: Fetcher) -> Source:
    """A part's bytes, fetched and decompressed as its place and name ask for."""
    local = part.uri.startswith("file:")
    source: Source = FileSource(part, store) if local else BufferSource(memoryview(fetcher.fetch(part.info)))
    return GzipSource(source, part.uri) if part.name.endswith(".gz") else source


def part_schema(
    parts: Sequence[Part], store: Store, label: str | None = None, columns: str | Sequence[str] | None = None
) -> Schema:
    """The schema from the first part's header, with the caller's choice of label and features."""
    if not parts:
        raise NoDataError("there is no part to take a header from")
    first = parts[0]
    if first.name.endswith(".gz"):
        head = bytes(open_source(first, store, Fetcher(store)).window(0, HEADER_BYTES))
    else:
        head = store.read(first.info, 0, min(HEADER_BYTES, first.size or HEADER_BYTES))
    return read_schema(head, first.uri, label, columns)


def read_blocks(
    parts: Sequence[Part],
    store: Store,
    schema: Schema,
    nulls: NullPolicy,
    *,
    dtype: npt.DTypeLike = np.float64,
    stops: Sequence[int] | None = None,
    threads: int | None = None,
    fetcher: Fetcher | None = None,
) -> Iterator[Block]:
    """All rows of `parts`, in order, as blocks.

    `stops[i]`: a row of part i behind which nothing is needed: its later blocks are left out (None reads all parts
    whole). Errors are raised when their block's turn comes, located by URI, row and column, and nothing runs on.
    """
    threads = threads or cores()
    reading = _Reading(parts, store, schema, nulls, dtype, stops, fetcher or Fetcher(store))
    with ThreadPoolExecutor(threads, "cabrank-parse") as pool, ThreadPoolExecutor(2, "cabrank-fetch") as opener:
        try:
            yield from reading.run(pool, opener, ahead=2 * threads)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            opener.shutdown(wait=False, cancel_futures=True)


@dataclass
class _Reading:
    parts: Sequence[Part]
    store: Store
    schema: Schema
    nulls: NullPolicy
    dtype: npt.DTypeLike
    stops: Sequence[int] | None
    fetcher: Fetcher
    done: int = -1
    """Place of the latest part of which no more rows are needed."""

    def run(self, pool: ThreadPoolExecutor, opener: ThreadPoolExecutor, ahead: int) -> Iterator[Block]:
        """Blocks in order, never more than `ahead` of them being parsed or waiting."""
        cuts = self._cuts(opener)
        waiting: deque[tuple[int, bool, Future[Parsed]]] = deque()
        place, row = -1, 0
        while True:
            while len(waiting) < ahead and (cut := next(cuts, None)) is not None:
                index, names, data, last = cut
                waiting.append(
                    (index, last, pool.submit(parse_block, data, names, self.schema, self.nulls, self.dtype))
                )
            if not waiting:
                return
            index, last, future = waiting.popleft()
            if index == self.done:
                continue
            place, row = index, row if index == place else 0
            try:
                block = Block(index, self.parts[index], row, future.result(), last)
            except BlockError as error:
                raise error.fault.error(self.parts[index].uri, row) from error.__cause__
            row = block.end_row
            if self.stops is not None and row >= self.stops[index]:
                self.done = index
            yield block

    def _cuts(self, opener: ThreadPoolExecutor) -> Iterator[tuple[int, list[str], memoryview, bool]]:
        """(place of the part, names of the fields, bytes of whole rows, whether they are the part's last)."""
        opening: deque[Future[Source]] = deque()
        for index, part in enumerate(self.parts):
            while len(opening) < 2 and index + len(opening) < len(self.parts):
                following = self.parts[index + len(opening)]
                opening.append(opener.submit(open_source, following, self.store, self.fetcher))
            source = opening.popleft().result()
            names, at = split_header(source.window(0, HEADER_BYTES), part.uri)
            self.schema.check(names, part.uri)
            last = False
            while not last and self.done != index:
                data, last = cut_block(source, at)
                at += len(data)
                yield index, names, data, last


def cut_block(source: Source, start: int, size: int = BLOCK_BYTES) -> tuple[memoryview, bool]:
    """Whole rows from `start` on, about `size` bytes of them, and whether nothing follows them.

    A block ends behind a newline that no quote encloses, so that no row is parsed in two halves. A row that is longer
    than `size` makes the block as long as it needs.
    """
    while True:
        window = source.window(start, size)
        if len(window) < size:
            return window, True
        end = _last_row_end(window)
        if end:
            return window[:end], False
        size *= 2


def _last_row_end(window: memoryview) -> int:
    """Behind the last newline that no quote encloses; 0 where there is none."""
    base = max(0, len(window) - TAIL_BYTES)
    end = base + bytes(window[base:]).rfind(b"\n") + 1
    if end > base and QUOTE.search(window) is None:
        return end
    text = bytes(window)
    quotes, end = text.count(b'"'), len(text)
    while end:
        cut = text.rfind(b"\n", 0, end) + 1
        quotes -= text.count(b'"', cut, end)
        if quotes % 2 == 0:
            return cut
        end = cut - 1 if cut else 0
    return 0
