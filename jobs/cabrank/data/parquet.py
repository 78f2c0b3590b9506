"""Parquet, read in place: the footer tells columns and rows, and of the row groups only the wanted columns are read.

    footer ─► runs: one row group, or several small ones ─► fetch the wanted columns' bytes ─► slices ─► Block

An object's bytes are fetched a run ahead, in ranges; a file's are read as they are decoded. A slice is as many rows as
a block of CSV has bytes for: a run is decoded slice after slice, and its slices become matrices on several threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from threading import Condition
from typing import Any

import numpy as np
import numpy.typing as npt

from cabrank.data.fetch import Buffer, Fetcher
from cabrank.data.listing import Part
from cabrank.data.parquet_file import RangedFile, check_magic, merge, parquet_errors
from cabrank.data.parse import BLOCK_BYTES, Dtype, Parsed, Rows, Schema, check_names, matrix_dtype, settle
from cabrank.errors import CabrankError, DataError, SchemaError
from cabrank.nulls import NullPolicy
from cabrank.store import Store

TAIL_BYTES = 1 << 16  # pyarrow's own first read of a footer
WHOLE_BYTES = 1 << 20  # an object of this size takes one request rather than several
READ_BYTES = 1 << 18  # of each column of a local file at a time
RUNS_AHEAD = 2

Task = Callable[[], Parsed]
Held = list[tuple[int, Buffer]]
"""Ranges of a part: where each begins, and its bytes."""


class ParquetPart:
    """A part whose footer has been read. `names`: its columns, nested ones by their outermost name; `rows`: in all."""

    def __init__(self, part: Part, store: Store, fetcher: Fetcher, opener: Executor) -> None:
        """Reads the footer. `opener` fetches what comes next meanwhile."""
        self.part, self._fetcher, self._opener = part, fetcher, opener
        self._remote = store.remote
        self._whole: Buffer | None = None
        size = part.size
        if size is None or not store.splittable(part.info) or (store.remote and size <= WHOLE_BYTES):
            self._whole = fetcher.fetch(part.info)
            size = len(self._whole)
        self._size = size
        start = max(0, size - TAIL_BYTES)
        tail = fetcher.fetch_range(part.info, start, size - start) if self._whole is None else self._whole[start:]
        check_magic(tail, part.uri)
        with parquet_errors(part.uri):
            opened = self._open([(start, tail)])
            self._metadata = opened.metadata
            self._types = {field.name: field.type for field in opened.schema_arrow}
            check_names([field.name for field in opened.schema_arrow], part.uri)
        self.names = list(self._types)
        self.rows: int | None = self._metadata.num_rows

    def check(self, schema: Schema) -> None:
        """`SchemaError` unless the part has the schema's columns, and those that are read hold numbers."""
        schema.check(self.names, self.part.uri)
        for name in schema.columns:
            if not is_number(self._types[name]):
                numbers = ",".join(other for other in self.names if is_number(self._types[other]))
                raise SchemaError(
                    f"{self.part.uri}: column {name!r} is {self._types[name]}, which is no number; leave it out: these "
                    f"columns are numbers, dates or times: {numbers or 'none'}"
                )

    def blocks(self, schema: Schema, nulls: NullPolicy, dtype: Dtype) -> Iterator[tuple[Task, bool]]:
        """The part's blocks in order, each to be made on any thread, and whether it is the last."""
        runs = list(self._runs(schema.columns))
        if not runs:
            yield partial(_no_rows, schema, dtype), True
        fetches: deque[Future[Held]] = deque()
        ahead = RUNS_AHEAD if self._remote and self._whole is None else 0
        try:
            for number, (groups, rows) in enumerate(runs):
                for later, _ in runs[number + len(fetches) : number + ahead]:
                    fetches.append(self._opener.submit(self._fetch, later, schema.columns))
                run = Run(self, groups, rows, schema, nulls, dtype, fetches.popleft() if fetches else None)
                for piece in range(run.pieces):
                    yield partial(run.take, piece), number + 1 == len(runs) and piece + 1 == run.pieces
        finally:  # no more rows are wanted
            for fetch in fetches:
                fetch.cancel()

    def tables(self, columns: Sequence[str]) -> Iterator[Any]:
        """Rows of some columns, whatever they hold, as record batches of a block's size."""
        with parquet_errors(self.part.uri):
            yield from self.decode(range(self._metadata.num_row_groups), columns, slice_rows(len(columns)), None)

    def decode(
        self, groups: Sequence[int], columns: Sequence[str], rows: int, fetched: Future[Held] | None
    ) -> Iterator[Any]:
        """The wanted columns of some row groups, as record batches of at most `rows` rows."""
        opened = self._open(fetched.result() if fetched else [(0, self._whole)] if self._whole is not None else [])
        return opened.iter_batches(rows, row_groups=groups, columns=list(dict.fromkeys(columns)), use_threads=False)  # type: ignore[no-any-return]

    def _open(self, held: Held) -> Any:
        # pre_buffer would read on threads of its own, which may outlive the interpreter; so would use_threads
        import pyarrow.parquet as pq

        file = RangedFile(self.part, self._size, self._fetcher, held)
        return pq.ParquetFile(
            file,
            metadata=getattr(self, "_metadata", None),
            buffer_size=0 if held else READ_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _runs(self, columns: Sequence[str]) -> Iterator[tuple[list[int], int]]:
        """(row groups, their rows): each large one by itself, small ones together up to a block's rows."""
        enough, groups, rows = slice_rows(len(columns)), list[int](), 0
        for group in range(self._metadata.num_row_groups):
            groups.append(group)
            rows += self._metadata.row_group(group).num_rows
            if rows >= enough:
                yield groups, rows
                groups, rows = [], 0
        if rows:
            yield groups, rows

    def _fetch(self, groups: Sequence[int], columns: Sequence[str]) -> Held:
        ranges = merge(sorted(span for group in groups for span in self._chunks(group, set(columns))))
        return [(start, self._fetcher.fetch_range(self.part.info, start, stop - start)) for start, stop in ranges]

    def _chunks(self, group: int, columns: set[str]) -> Iterator[tuple[int, int]]:
        """[start, stop) of the wanted columns' bytes in one row group."""
        facts = self._metadata.row_group(group)
        for index in range(facts.num_columns):
            chunk = facts.column(index)
            if chunk.path_in_schema in columns:
                start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
                yield start, min(start + chunk.total_compressed_size, self._size)


@dataclass
class Run:
    """Row groups that are decoded together, a slice at a time and in order, by whichever threads come for them."""

    part: ParquetPart
    groups: Sequence[int]
    rows: int
    schema: Schema
    nulls: NullPolicy
    dtype: Dtype
    fetched: Future[Held] | None
    _batches: Iterator[Any] | None = None
    _rest: list[Any] = field(default_factory=list)
    _next: int = 0
    _failed: bool = False
    _changed: Condition = field(default_factory=Condition)

    @property
    def pieces(self) -> int:
        """How many slices there are."""
        return -(-self.rows // slice_rows(len(self.schema.columns)))

    def take(self, number: int) -> Parsed:
        """Slice `number`, counted from 0, once those before it are decoded. `DataError` for damaged data."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number or self._failed)
            if self._failed:
                raise CabrankError("a slice behind one that failed was asked for")
            try:
                table = self._decode(number)
            except BaseException:
                self._failed = True
                raise
            finally:
                self._next = number + 1
                self._changed.notify_all()

        def fields(names: Sequence[str], rows: Rows) -> Any:
            return table.select(list(names)).take(rows)

        columns = [numbers(table[name].combine_chunks()) for name in self.schema.columns]
        return settle(columns, self.schema, self.nulls, self.dtype, fields)

    def _decode(self, number: int) -> Any:
        import pyarrow as pa

        size = slice_rows(len(self.schema.columns))
        wanted, uri = min(size, self.rows - number * size), self.part.part.uri
        with parquet_errors(uri):
            if self._batches is None:
                self._batches = self.part.decode(self.groups, self.schema.columns, size, self.fetched)
            while sum(len(batch) for batch in self._rest) < wanted:
                if (batch := next(self._batches, None)) is None:
                    where = f"row groups {self.groups[0]} to {self.groups[-1]}"
                    raise DataError(f"{uri}: {where} hold fewer rows than its footer says; make it again")
                self._rest.append(batch)
            table = pa.Table.from_batches(self._rest)
        self._rest = table.slice(wanted).to_batches()
        if number + 1 == self.pieces:
            self._batches = self.fetched = None
        return table.slice(0, wanted)


def slice_rows(columns: int) -> int:
    """Rows whose float64 matrix is a block's size."""
    return max(1, BLOCK_BYTES // (8 * columns))


def is_number(kind: Any) -> bool:
    """Whether values of a pyarrow type can be read as numbers, by `numbers`."""
    from pyarrow import types

    return any(
        check(kind)
        for check in (
            types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_date, types.is_timestamp,
        )
    )  # fmt: skip


def numbers(array: Any) -> npt.NDArray[Any]:
    """A pyarrow array as floats, NaN for null: numbers as the nearest float64 (float32 stays), false and true as 0 and
    1, dates as days and times as seconds since the start of 1970."""
    import pyarrow as pa
    from pyarrow import types

    kind, unit = array.type, 1.0
    if types.is_decimal(kind):
        array = array.cast(pa.string())  # read from text, the nearest; pyarrow's own cast may miss it by one
    elif types.is_date32(kind):
        array = array.cast(pa.int32())
    elif types.is_date64(kind):
        array, unit = array.cast(pa.int64()), 86_400e3
    elif types.is_timestamp(kind):
        array, unit = array.cast(pa.int64()), {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
    if not (types.is_float64(array.type) or types.is_float32(array.type)):
        array = array.cast(pa.float64(), safe=False)
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values if unit == 1 else values / unit


def _no_rows(schema: Schema, dtype: Dtype) -> Parsed:
    return Parsed(np.empty((0, len(schema.columns)), matrix_dtype(dtype)), np.empty(0, np.int64))
