"""What kind of file a part is, by its name: each kind opens to its columns, and from there gives blocks.

.parquet                 parquet.py       the footer first, then of each row group what is wanted
.csv  .csv.gz  .csv.zst  csv_text.py      the header first, then the rest, cut at newlines
anything else            csv_text.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from cabrank.data.csv_text import HEADER_BYTES, cut_block, parse_block, split_header
from cabrank.data.fetch import Fetcher
from cabrank.data.listing import Part
from cabrank.data.parquet import ParquetPart
from cabrank.data.parse import Dtype, Parsed, Schema
from cabrank.data.sources import UNPACK, BufferSource, RangeSource, Source, unpacked
from cabrank.nulls import NullPolicy
from cabrank.store import Store

PARQUET = ".parquet"


class OpenPart(Protocol):
    """A part whose columns are known and whose rows are not read yet."""

    names: list[str]
    """Its columns, in the file's order."""
    rows: int | None
    """How many, where the file says so without being read."""

    def check(self, schema: Schema) -> None:
        """`SchemaError` unless the part can be read by this schema."""

    def blocks(self, schema: Schema, nulls: NullPolicy, dtype: Dtype) -> Iterator[tuple[Callable[[], Parsed], bool]]:
        """Its blocks in order, at least one: what makes each, on any thread, and whether it is the last. Making them
        raises `BlockError` for bad rows, `DataError` for damaged files."""


class CsvPart:
    """A CSV part whose header has been read."""

    rows: int | None = None

    def __init__(self, part: Part, source: Source) -> None:
        self.uri, self._source = part.uri, source
        self.names, self._at = split_header(source.window(0, HEADER_BYTES), part.uri)

    def check(self, schema: Schema) -> None:
        """See `OpenPart`."""
        schema.check(self.names, self.uri)

    def blocks(self, schema: Schema, nulls: NullPolicy, dtype: Dtype) -> Iterator[tuple[Callable[[], Parsed], bool]]:
        """See `OpenPart`; the thread that iterates cuts them."""
        for data, last in self.pieces():
            yield partial(parse_block, data, self.names, schema, nulls, dtype), last

    def pieces(self) -> Iterator[tuple[memoryview, bool]]:
        """Its rows as they are written, block by block, and whether a block is the last."""
        at, last = self._at, False
        while not last:
            data, last = cut_block(self._source, at)
            at += len(data)
            yield data, last


def open_part(part: Part, store: Store, fetcher: Fetcher, opener: Executor, *, whole: bool = True) -> OpenPart:
    """Opens a part; `opener` fetches row groups ahead of their turn. `whole`: it will be read to its end, and an object
    of CSV is fetched at once."""
    if part.name.lower().endswith(PARQUET):
        return ParquetPart(part, store, fetcher, opener)
    if (whole and store.remote) or not store.splittable(part.info):
        source: Source = BufferSource(memoryview(fetcher.fetch(part.info)))
    else:
        source = RangeSource(part, fetcher)
    return CsvPart(part, unpacked(source, part))


def kind(part: Part) -> str:
    """The same word for parts that are one kind of file, compressed or not: `csv`, `parquet`."""
    name = part.name.lower()
    for ending in UNPACK:
        name = name.removesuffix(ending)
    return "parquet" if name.endswith(PARQUET) else name.rpartition(".")[2]
