"""Parts as they are written: every column as text, block by block, for looking at data before anything is known of it.

Types are nobody's guess yet: a zip code keeps its leading zero, and a word in a column of numbers is there to be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from cabrank.data.csv_text import QUOTE, locate
from cabrank.data.fetch import Fetcher
from cabrank.data.formats import CsvPart, open_part
from cabrank.data.listing import Part
from cabrank.data.parquet import ParquetPart
from cabrank.data.parse import Fault, Schema
from cabrank.errors import SchemaError
from cabrank.store import Store

Hashes = npt.NDArray[np.uint64]

_LONGEST = 4_096  # characters told apart by their place; beyond, places repeat
_WEIGHTS: Hashes = np.random.default_rng(20_240_229).integers(2**64, size=_LONGEST + 2, dtype=np.uint64) | np.uint64(1)


def text_blocks(parts: Sequence[Part], store: Store, schema: Schema) -> Iterator[Any]:
    """All rows as pyarrow tables of strings, trimmed, the columns in the schema's order; an empty field and the usual
    words for none (NA, null, NaN) are null. `SchemaError` with URI and row for a ragged row or bytes that are no text,
    and for a column of Parquet that holds more than one value a row.
    """
    fetcher = Fetcher(store)
    with ThreadPoolExecutor(1, "cabrank-open") as opener:
        for part in parts:
            opened = open_part(part, store, fetcher, opener)
            schema.check(opened.names, part.uri)
            if isinstance(opened, CsvPart):
                row = 0
                for data, _ in opened.pieces():
                    table = _parse(data, opened.names, schema, part.uri, row)
                    row += table.num_rows
                    yield table
            elif isinstance(opened, ParquetPart):
                yield from (_spelled(table, schema, part.uri) for table in opened.tables(schema.columns))


def _parse(data: memoryview, names: Sequence[str], schema: Schema, uri: str, row: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    columns = list(schema.columns)
    if not bytes(data).strip():
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    read = arrow_csv.ReadOptions(use_threads=False, block_size=max(len(data), 1), column_names=list(names))
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), include_columns=columns, strings_can_be_null=True
    )
    quoted = QUOTE.search(data) is not None
    try:
        table = arrow_csv.read_csv(pa.py_buffer(data), read, arrow_csv.ParseOptions(newlines_in_values=quoted), convert)
    except pa.ArrowInvalid as error:
        fault = locate(data, names, Schema(()))
        raise (fault or Fault(0, SchemaError, f"cannot be read: {error}; is it UTF-8 text?")).error(uri, row) from error
    trimmed = [pc.utf8_trim_whitespace(column).combine_chunks() for column in table.columns]
    return pa.table([pc.if_else(pc.equal(column, ""), None, column) for column in trimmed], names=columns)


def _spelled(table: Any, schema: Schema, uri: str) -> Any:
    """Columns of any type as text."""
    import pyarrow as pa

    columns = []
    for name in schema.columns:
        try:
            columns.append(table.column(name).cast(pa.string()))
        except pa.ArrowException as error:
            kind = table.column(name).type
            raise SchemaError(f"{uri}: column {name!r} is {kind}, which cannot be written as text: {error}") from error
    return pa.table(columns, names=list(schema.columns))


def text_hash(column: Any) -> Hashes:
    """A 64-bit hash [n] of each string of a pyarrow array; equal strings have equal ones, nulls another.

    Σ (byte + 1) · weight[place] modulo 2⁶⁴ with random odd weights, then mixed: vectorised, and for two given strings
    a collision is as unlikely as a hash of 64 bits can make it.
    """
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    valid, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    del valid
    bytes_ = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.empty(0, np.uint8)
    ends -= ends[0]
    lengths = np.diff(ends)
    places = (np.arange(len(bytes_)) - np.repeat(ends[:-1], lengths)) % _LONGEST
    sums = np.concatenate([[np.uint64(0)], np.cumsum((bytes_ + np.uint64(1)) * _WEIGHTS[places], dtype=np.uint64)])
    hashes = sums[ends[1:]] - sums[ends[:-1]] + lengths.astype(np.uint64) * _WEIGHTS[_LONGEST]
    missing = np.asarray(array.is_null())
    return mix(np.where(missing, _WEIGHTS[_LONGEST + 1], hashes))


def mix(hashes: Hashes) -> Hashes:
    """Spreads every bit over all bits (the finaliser of splitmix64; Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(31))
