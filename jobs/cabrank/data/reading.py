"""Parts → blocks of rows, in order: bytes fetched ahead, blocks parsed in parallel, a bounded number of them in flight.

    part ─► source ─► cut at newlines ─► parse on a thread ─► Block ─► … in the order of the parts and of their rows

One thread a core parses (pyarrow lets go of the interpreter meanwhile); the thread that iterates cuts the blocks. A
file is read block by block where it lies; an object is fetched whole, ahead of its turn, within the fetcher's budget.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cabrank.data.cached import OrderedFill, PartCache
from cabrank.data.fetch import Fetcher
from cabrank.data.ledger import Ledger
from cabrank.data.listing import Part
from cabrank.data.parse import (
    BLOCK_BYTES,
    HEADER_BYTES,
    QUOTE,
    BlockError,
    Parsed,
    Schema,
    parse_block,
    read_schema,
    split_header,
)
from cabrank.errors import DataError, NoDataError
from cabrank.nulls import NullPolicy
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


def open_source(part: Part, fetcher: Fetcher) -> Source:
    """A part's bytes, fetched and decompressed as its place and name ask for."""
    local = part.uri.startswith("file:")
    source: Source = FileSource(part, fetcher) if local else BufferSource(memoryview(fetcher.fetch(part.info)))
    return GzipSource(source, part.uri) if part.name.endswith(".gz") else source


def part_schema(
    parts: Sequence[Part], store: Store, label: str | None = None, columns: str | Sequence[str] | None = None
) -> Schema:
    """The schema from the first part's header, with the caller's choice of label and features."""
    if not parts:
        raise NoDataError("there is no part to take a header from")
    first = parts[0]
    if first.name.endswith(".gz"):
        head = bytes(open_source(first, Fetcher(store)).window(0, HEADER_BYTES))
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
    cache: PartCache | None = None,
    rows: Sequence[int] | None = None,
    ledger: Ledger | None = None,
) -> Generator[Block]:
    """All rows of `parts`, in order, as blocks.

    `stops[i]`: a row of part i behind which nothing is needed: its later blocks are left out (None reads all parts
    whole). `cache`: parts come from there as one block, and go there while they are read, which then is whole, whatever
    the stops; `rows[i]` says how many rows to expect. `ledger` is told what it costs. Errors are raised when their
    block's turn comes, located by URI, row and column, and nothing runs on.
    """
    threads = threads or cores()
    fetcher, ledger = fetcher or Fetcher(store), ledger or Ledger()
    reading = _Reading(parts, store, schema, nulls, dtype, stops, fetcher, cache, rows, ledger)
    fetched = fetcher.ledger
    with ThreadPoolExecutor(threads, "cabrank-parse") as pool, ThreadPoolExecutor(2, "cabrank-open") as opener:
        try:
            yield from reading.run(pool, opener, ahead=2 * threads)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            opener.shutdown(wait=False, cancel_futures=True)
            reading.close()
            ledger.add_fetched(fetched, fetcher.ledger)


class _Cut(NamedTuple):
    """One block on its way: of which part, whether it is the last of it, and what it will be."""

    place: int
    last: bool
    parsed: Future[Parsed]


@dataclass
class _Reading:
    parts: Sequence[Part]
    store: Store
    schema: Schema
    nulls: NullPolicy
    dtype: npt.DTypeLike
    stops: Sequence[int] | None
    fetcher: Fetcher
    cache: PartCache | None
    rows: Sequence[int] | None
    ledger: Ledger
    fills: dict[int, OrderedFill] = field(default_factory=dict)
    """By place, the parts that go into the cache."""
    done: int = -1
    """Place of the latest part of which no more rows are needed."""

    def run(self, pool: ThreadPoolExecutor, opener: ThreadPoolExecutor, ahead: int) -> Iterator[Block]:
        """Blocks in order, never more than `ahead` of them being parsed or waiting."""
        cuts = self._cuts(pool, opener)
        waiting: deque[_Cut] = deque()
        place, row = -1, 0
        while True:
            while len(waiting) < ahead and (cut := next(cuts, None)) is not None:
                waiting.append(cut)
            if not waiting:
                return
            cut = waiting.popleft()
            if cut.place == self.done:
                continue
            place, row = cut.place, row if cut.place == place else 0
            try:
                parsed = cut.parsed.result()
            except BlockError as error:
                raise error.fault.error(self.parts[place].uri, row) from error.__cause__
            block = Block(place, self.parts[place], row, parsed, cut.last)
            row = block.end_row
            if parsed.filled:
                self.ledger.add(filled_fields=parsed.filled)
            if self.stops is not None and row >= self.stops[place] and place not in self.fills:
                self.done = place
            yield block

    def _cuts(self, pool: ThreadPoolExecutor, opener: ThreadPoolExecutor) -> Iterator[_Cut]:
        opening: deque[Future[Source | Parsed]] = deque()
        for place in range(len(self.parts)):
            while len(opening) < 2 and place + len(opening) < len(self.parts):
                opening.append(opener.submit(self._open, place + len(opening)))
            source = opening.popleft().result()
            if isinstance(source, Parsed):
                found: Future[Parsed] = Future()
                found.set_result(source)
                yield _Cut(place, True, found)
            else:
                yield from self._cut_part(place, source, pool)

    def _open(self, place: int) -> Source | Parsed:
        part = self.parts[place]
        cached = self.cache.find(part) if self.cache else None
        if self.cache:
            self.ledger.add(**{"cache_misses" if cached is None else "cache_hits": 1})
        return open_source(part, self.fetcher) if cached is None else cached

    def _cut_part(self, place: int, source: Source, pool: ThreadPoolExecutor) -> Iterator[_Cut]:
        names, at = split_header(source.window(0, HEADER_BYTES), self.parts[place].uri)
        self.schema.check(names, self.parts[place].uri)
        if self.cache and (fill := self.cache.begin(self.parts[place], self.rows[place] if self.rows else 0)):
            self.fills[place] = fill
        number, last = 0, False
        while not last and self.done != place:
            data, last = cut_block(source, at)
            at += len(data)
            yield _Cut(place, last, pool.submit(self._parse, place, number, names, data, last))
            number += 1

    def _parse(self, place: int, number: int, names: list[str], data: memoryview, last: bool) -> Parsed:
        fill = self.fills.get(place)
        try:
            with self.ledger.timing("parse_seconds"):
                parsed = parse_block(data, names, self.schema, self.nulls, self.dtype)
        except BlockError:
            if fill:
                fill.close()
            raise
        if fill:
            fill.add(number, parsed, last)
        return parsed

    def close(self) -> None:
        """Gives up what did not come to its end."""
        for fill in self.fills.values():
            fill.close()


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
