"""CSV bytes → columns, a block of whole rows at a time; counting and reading see the same rows.

pyarrow does the work, on one thread, from a buffer (docs/decisions/0003). Types come from the schema, never from the
data; columns are joined by name. A block that pyarrow refuses is read once more by Python's csv module, slowly, to say
which row and column it is.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cabrank.data.parse import (
    BLOCK_BYTES,
    INFINITY,
    NUMBER,
    BlockError,
    Dtype,
    Fault,
    Parsed,
    Rows,
    Schema,
    check_names,
    matrix_dtype,
    settle,
    shortened,
)
from cabrank.data.sources import Source
from cabrank.errors import BadValueError, SchemaError
from cabrank.nulls import NullPolicy

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # Python 3.12's name for what 3.11 accepts, too

HEADER_BYTES = 1 << 18
"""A header line longer than this is taken for a file that is no CSV."""
FIRST_BYTES = 1 << 13
TAIL_BYTES = 1 << 16  # a newline is looked for this far before a block's end, then in all of it
BOM = b"\xef\xbb\xbf"
BLANK_FIELD = re.compile(rb"(?m)(?:(?<=,)|^)[ \t]+(?=[,\r\n]|\Z)")
FOREIGN = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz", b"\x28\xb5\x2f\xfd": ".csv.zst"}
"""How files start that are no text, and the ending that says so."""


def header_window(source: Source) -> memoryview:
    """Enough of a part's start to hold its header: little, unless the header is long."""
    window = source.window(0, FIRST_BYTES)
    if len(window) < FIRST_BYTES or _row_end(memoryview(bytes(window).lstrip()), 0):
        return window
    return source.window(0, HEADER_BYTES + len(BOM) + 1)  # more than `split_header` takes for a header


def split_header(data: memoryview, uri: str) -> tuple[list[str], int]:
    """The names in the header row and where the data begins; `SchemaError` when there is no usable header."""
    for magic, ending in FOREIGN.items():
        if bytes(data[: len(magic)]) == magic:
            raise SchemaError(f"{uri}: this is no CSV text but looks like {ending}; give the part that ending")
    skip = len(BOM) if bytes(data[: len(BOM)]) == BOM else 0
    head = data[: HEADER_BYTES + skip]
    end = skip
    while not bytes(head[skip:end]).strip() and end < len(head):  # blank lines may stand above the header
        skip, end = end, _row_end(head, end) or len(head)
    if end == len(head) < len(data):
        raise SchemaError(f"{uri}: no end of the header row in the first {HEADER_BYTES} bytes: this is no CSV file")
    try:
        text = bytes(head[skip:end]).decode("utf-8")
    except UnicodeDecodeError as error:
        kind = "UTF-16 text" if bytes(data[:2]) in (b"\xff\xfe", b"\xfe\xff") else "not UTF-8 text"
        where = f"{error.reason} at byte {skip + error.start}"
        raise SchemaError(f"{uri}: the header is {kind} ({where}); save the part as UTF-8") from error
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise SchemaError(f"{uri}: its header {text.strip()!r} is separated by {other!r}; write the part with commas")
    if not names:
        raise SchemaError(f"{uri}: holds blank lines and no header; add the header row, or remove the part")
    if "\x00" in text:
        raise SchemaError(f"{uri}: its header {text.strip()!r} holds zero bytes: this is no CSV file")
    if all(NUMBER.fullmatch(name) for name in names):
        raise SchemaError(f"{uri}: the first row is {','.join(names)!r} and not a header; add a row of column names")
    check_names(names, uri)
    return names, end


def _row_end(data: memoryview, start: int) -> int | None:
    """Behind the first newline from `start` on that no quote encloses; old Macs' count where no others are."""
    quotes, at, raw = 0, start, bytes(data)
    if b"\n" not in raw:
        raw = raw.replace(b"\r", b"\n")
    while (newline := raw.find(b"\n", at)) >= 0:
        quotes += raw.count(b'"', at, newline)
        if quotes % 2 == 0:
            return newline + 1
        at = newline + 1
    return None


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
    if end > base and not has_quote(window):
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


def has_quote(data: memoryview) -> bool:
    """Whether a quote stands anywhere. (Copy and search take a seventh of a regular expression's time.)"""
    return b'"' in bytes(data)


def parse_block(
    data: Buffer, names: Sequence[str], schema: Schema, nulls: NullPolicy, dtype: Dtype = np.float64
) -> Parsed:
    """A block of whole rows without a header, its fields called `names`, as a matrix in the schema's order.

    Raises `BlockError` for a ragged row, a word, and, under `raise`, for an empty field, NaN or infinity.
    """
    import pyarrow as pa

    raw = memoryview(data)
    try:
        table = _read(raw, names, dict.fromkeys(schema.columns, pa.float64()))
    except pa.ArrowInvalid as error:
        if not bytes(raw).strip():
            return Parsed(np.empty((0, len(schema.columns)), matrix_dtype(dtype)), np.empty(0, np.int64))
        fault = locate(raw, names, schema)
        if fault is None and (trimmed := BLANK_FIELD.sub(b"", bytes(raw))) != raw:
            return parse_block(trimmed, names, schema, nulls, dtype)  # pyarrow takes "" for null, and "  " for a word
        raise BlockError(fault or Fault(0, SchemaError, f"pyarrow cannot read the block here: {error}")) from error

    def fields(wanted: Sequence[str], rows: Rows) -> Any:
        types = dict.fromkeys(wanted, pa.binary())
        lines = _lines(raw, rows, table.num_rows)
        return _read(raw, names, types).take(rows) if lines is None else _read(lines, names, types)

    columns = [column.combine_chunks().to_numpy(zero_copy_only=False) for column in table.columns]
    return settle(columns, schema, nulls, dtype, fields)


def _lines(raw: memoryview, rows: Rows, total: int) -> memoryview | None:
    """The text of some rows, to be read alone; None where rows are not just lines, and all must be read to tell."""
    text = bytes(raw)
    ends = np.append(np.flatnonzero(np.frombuffer(raw, np.uint8) == ord("\n")), len(text))
    ends = ends[:-1] if text.endswith(b"\n") else ends
    if b'"' in text or len(ends) != total or text.count(b"\r") != text.count(b"\r\n"):
        return None
    starts = np.append(0, ends + 1)[rows]
    return memoryview(b"\n".join(text[start:end] for start, end in zip(starts, ends[rows], strict=True)))


def _read(raw: memoryview, names: Sequence[str], types: dict[str, Any]) -> Any:
    """The columns of `types`, in its order, as a pyarrow table."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    read = arrow_csv.ReadOptions(use_threads=False, block_size=max(len(raw), 1), column_names=list(names))
    convert = arrow_csv.ConvertOptions(column_types=types, include_columns=list(types), check_utf8=False)
    quoted = has_quote(raw)  # newlines inside quotes cost pyarrow another pass: only where they may be
    return arrow_csv.read_csv(pa.py_buffer(raw), read, arrow_csv.ParseOptions(newlines_in_values=quoted), convert)


def locate(data: Buffer, names: Sequence[str], schema: Schema) -> Fault | None:
    """The first row that cannot be read under any policy, as a person would want to be told of it."""
    text = bytes(data).decode("utf-8", errors="replace")
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a field may be as long as the block
    wanted = [(list(names).index(name), name) for name in schema.columns]
    rows = (row for row in csv.reader(io.StringIO(text, newline="")) if row)  # blank lines are no rows
    null_words = _null_words()
    for number, row in enumerate(rows):
        if len(row) != len(names):
            ragged = f"has {len(row)} fields, not {len(names)}: {shortened(','.join(row))}; repair the row"
            return Fault(number, SchemaError, ragged)
        for index, name in wanted:
            word = row[index].strip(" \t\r")
            if word and word not in null_words and not NUMBER.fullmatch(word) and not INFINITY.fullmatch(word):
                flaw = f"column {name!r}: {shortened(row[index])} is no number; correct the field"
                return Fault(number, BadValueError, flaw)
    return None


def _null_words() -> frozenset[str]:
    from pyarrow import csv as arrow_csv

    return frozenset(arrow_csv.ConvertOptions().null_values) | {"nan", "NaN", "NAN", "-nan", "+nan"}
