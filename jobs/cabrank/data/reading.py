"""Parts → blocks of rows, in order: bytes fetched ahead, blocks parsed in parallel, a bounded number of them in flight.

    part ─► open ─► its columns, checked ─► blocks, parsed on threads ─► Block ─► … in the order of parts and rows

One thread a core parses (pyarrow lets go of the interpreter meanwhile); the thread that iterates cuts the blocks. A
file is read block by block where it lies; an object is fetched ahead of its turn, within the fetcher's budget. What
kinds of files there are is `formats.py`'s business.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cabrank.data.cached import OrderedFill, PartCache
from cabrank.data.fetch import Fetcher
from cabrank.data.formats import OpenPart, open_part
from cabrank.data.ledger import Ledger
from cabrank.data.listing import Part
from cabrank.data.parse import BlockError, Dtype, Parsed, Schema, choose_columns, largest
from cabrank.errors import NoDataError
from cabrank.nulls import NullPolicy
from cabrank.store import Store


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


def part_schema(
    parts: Sequence[Part],
    store: Store,
    label: str | int | None = None,
    columns: str | Sequence[str] | None = None,
    *,
    counting: bool = False,
) -> Schema:
    """The schema from the first part's columns, with the caller's choice of label and features (`choose_columns`).
    `counting`: rows will be counted and not read, and the columns may hold anything."""
    if not parts:
        raise NoDataError("there is no part to take a header from")
    with ThreadPoolExecutor(1, "cabrank-open") as opener:
        first = open_part(parts[0], store, Fetcher(store), opener, whole=False)
        schema = choose_columns(first.names, parts[0].uri, label, columns)
        if not counting:
            first.check(schema)
    return schema


def count_rows(parts: Sequence[Part], store: Store, schema: Schema) -> dict[str, int]:
    """Rows of each part, by URI: as its footer says where its format has one, else by reading its first column."""
    one_column = Schema(schema.columns[:1], schema.header or schema.columns)
    blocks = read_blocks(parts, store, one_column, NullPolicy("fill"), counting=True)
    return {block.part.uri: block.end_row for block in blocks if block.last}


def read_blocks(
    parts: Sequence[Part],
    store: Store,
    schema: Schema,
    nulls: NullPolicy,
    *,
    dtype: Dtype = np.float64,
    stops: Sequence[int] | None = None,
    threads: int | None = None,
    fetcher: Fetcher | None = None,
    cache: PartCache | None = None,
    rows: Sequence[int] | None = None,
    ledger: Ledger | None = None,
    counting: bool = False,
) -> Generator[Block]:
    """All rows of `parts`, in order, as blocks.

    `stops[i]`: a row of part i behind which nothing is needed: its later blocks are left out (None reads all parts
    whole). `cache`: parts come from there as one block, and go there while they are read, which then is whole, whatever
    the stops; `rows[i]` says how many rows to expect. `ledger` is told what it costs. `counting`: only the number of
    rows matters, and a part that tells it comes as one block without columns. `ConfigError` for a policy that does not
    fit the columns or the dtype. Other errors are raised when their block's turn comes, located by URI, row and column,
    and nothing runs on.
    """
    threads = threads or cores()
    nulls.check(schema.header or schema.columns, largest(dtype))
    fetcher, ledger = fetcher or Fetcher(store), ledger or Ledger()
    reading = _Reading(parts, store, schema, nulls, dtype, stops, fetcher, cache, rows, ledger, counting)
    fetched = fetcher.ledger
    with ThreadPoolExecutor(threads, "cabrank-parse") as pool, ThreadPoolExecutor(2, "cabrank-open") as opener:
        try:
            yield from reading.run(pool, opener, ahead=threads + 1)
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
    dtype: Dtype
    stops: Sequence[int] | None
    fetcher: Fetcher
    cache: PartCache | None
    rows: Sequence[int] | None
    ledger: Ledger
    counting: bool
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
        opening: deque[Future[OpenPart | Parsed]] = deque()
        for place in range(len(self.parts)):
            while len(opening) < 2 and place + len(opening) < len(self.parts):
                opening.append(opener.submit(self._open, place + len(opening), opener))
            opened = opening.popleft().result()
            if isinstance(opened, Parsed):
                yield _Cut(place, True, _known(opened))
                continue
            if self.counting and opened.rows is not None:
                self.schema.check(opened.names, self.parts[place].uri)
                yield _Cut(place, True, _known(Parsed.uncolumned(opened.rows)))
            else:
                opened.check(self.schema)
                yield from self._cut_part(place, opened, pool)

    def _open(self, place: int, opener: ThreadPoolExecutor) -> OpenPart | Parsed:
        part = self.parts[place]
        cached = self.cache.find(part) if self.cache else None
        if self.cache:
            self.ledger.add(**{"cache_misses" if cached is None else "cache_hits": 1})
        return open_part(part, self.store, self.fetcher, opener) if cached is None else cached

    def _cut_part(self, place: int, opened: OpenPart, pool: ThreadPoolExecutor) -> Iterator[_Cut]:
        if self.cache and (fill := self.cache.begin(self.parts[place], self.rows[place] if self.rows else 0)):
            self.fills[place] = fill
        for number, (parse, last) in enumerate(opened.blocks(self.schema, self.nulls, self.dtype)):
            yield _Cut(place, last, pool.submit(self._parse, place, number, parse, last))
            if self.done == place:
                return

    def _parse(self, place: int, number: int, parse: Callable[[], Parsed], last: bool) -> Parsed:
        fill = self.fills.get(place)
        try:
            with self.ledger.timing("parse_seconds"):
                parsed = parse()
        except BaseException:
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


def _known(parsed: Parsed) -> Future[Parsed]:
    found: Future[Parsed] = Future()
    found.set_result(parsed)
    return found
