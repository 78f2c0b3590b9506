"""CSV bytes → a row-major matrix of numbers. One engine for counting and for reading, so that both see the same rows.

pyarrow does the work, on one thread, from a buffer, a block of whole rows at a time (docs/decisions/0003). Types come
from the schema, never from the data; columns are joined by name.

What pyarrow refuses, or reads as no finite number, is read once more by Python's csv module, slowly, to say which row
and column it is.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cabrank.errors import BadValueError, ConfigError, DataError, SchemaError
from cabrank.nulls import NullPolicy

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # Python 3.12's name for what 3.11 accepts, too

Matrix = npt.NDArray[np.floating]

BLOCK_BYTES = 4 << 20
"""Large enough that pyarrow's start-up per block is nothing, small enough that a few of them stay in memory."""
HEADER_BYTES = 1 << 18
"""A header line longer than this is taken for a file that is no CSV."""
QUOTE = re.compile(rb'"')
BOM = b"\xef\xbb\xbf"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
BLANK_FIELD = re.compile(rb"(?m)(?:(?<=,)|^)[ \t]+(?=[,\r\n]|\Z)")
INFINITY = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)


@dataclass(frozen=True)
class Schema:
    """The columns of the matrix, the label first and the features after it."""

    columns: tuple[str, ...]
    header: tuple[str, ...] = ()
    """All columns that a part must have, in any order; the same set as `columns` when it is empty."""

    @cached_property
    def expected(self) -> frozenset[str]:
        """The names that a part's header holds, no more and no fewer."""
        return frozenset(self.header or self.columns)

    def check(self, names: Sequence[str], uri: str) -> None:
        """`SchemaError` unless a part's header has exactly the expected names, in whatever order."""
        if frozenset(names) == self.expected:
            return
        if all(NUMBER.fullmatch(name.strip()) for name in names):
            raise SchemaError(
                f"{uri}: the first row is {','.join(names)!r} and not a header; add the header row "
                f"{','.join(self.header or self.columns)!r} to this part"
            )
        missing = [name for name in self.header or self.columns if name not in names]
        extra = [name for name in names if name not in self.expected]
        faults = [f"lacks column {', '.join(map(repr, missing))}"] if missing else []
        faults += [f"has an extra column {', '.join(map(repr, extra))}"] if extra else []
        raise SchemaError(
            f"{uri}: its header {' and '.join(faults)}; all parts need the columns of the first one: "
            f"{', '.join(self.header or self.columns)}. Rewrite the part, or leave it out of the glob"
        )


@dataclass(frozen=True)
class Parsed:
    """One block's rows. `values`: [n, C] row-major, all rows; `bad`: places of the rows that `drop` leaves out."""

    values: Matrix
    bad: npt.NDArray[np.int64]
    filled: int = 0
    """Fields that `fill` replaced."""

    @property
    def rows(self) -> int:
        """Rows in the block before the policy, which is what counts and metadata mean by rows."""
        return len(self.values)

    @property
    def dropped(self) -> int:
        """Rows that `drop` leaves out."""
        return len(self.bad)

    @property
    def matrix(self) -> Matrix:
        """The rows that are left, [n - dropped, C]."""
        return np.delete(self.values, self.bad, axis=0) if len(self.bad) else self.values


class Fault(NamedTuple):
    """What is wrong with one row of a block; `row` counts from 0 within the block."""

    row: int
    kind: type[DataError]
    text: str

    def error(self, uri: str, first_row: int) -> DataError:
        """The error, with the row's number in its part: data rows count from 1, the header is not one of them."""
        return self.kind(f"{uri}: row {first_row + self.row + 1}: {self.text}")


class BlockError(Exception):
    """A block that cannot be parsed. Whoever knows the block's place in its part turns it into a `DataError`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def split_header(data: memoryview, uri: str) -> tuple[list[str], int]:
    """The names in the header row and where the data begins; `SchemaError` when there is no usable header."""
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
        raise SchemaError(
            f"{uri}: the header is not UTF-8 text ({error.reason} at byte {skip + error.start})"
        ) from error
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names:
        raise SchemaError(f"{uri}: holds blank lines and no header; add the header row, or remove the part")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names or "\x00" in text:
        fault = f"the column {twice[0]!r} twice" if twice and twice[0] else "a column without a name"
        raise SchemaError(f"{uri}: its header {text.strip()!r} has {fault}; every column needs one name of its own")
    return names, end


def _row_end(data: memoryview, start: int) -> int | None:
    """Behind the first newline from `start` on that no quote encloses."""
    quotes, at, raw = 0, start, bytes(data)
    while (newline := raw.find(b"\n", at)) >= 0:
        quotes += raw.count(b'"', at, newline)
        if quotes % 2 == 0:
            return newline + 1
        at = newline + 1
    return None


def parser_version() -> str:
    """Names the rules by which bytes become numbers: what one of them made is no other's."""
    import pyarrow as pa

    return f"pyarrow-{pa.__version__}"


def read_schema(head: bytes, uri: str, label: str | None = None, columns: str | Sequence[str] | None = None) -> Schema:
    """The schema that the first part's header and the caller's choice of label and features give.

    `label`: a column's name, the first column when None. `columns`: names of features, as a list or comma-separated;
    all but the label when None. `ConfigError` for a name that the header does not have.
    """
    names, _ = split_header(memoryview(head), uri)
    if all(NUMBER.fullmatch(name) for name in names):
        raise SchemaError(f"{uri}: the first row is {','.join(names)!r} and not a header; add a row with column names")
    wanted = columns.split(",") if isinstance(columns, str) else columns
    features = [name.strip() for name in wanted] if wanted is not None else None
    label = names[0] if label is None else label
    for name in (label, *(features or ())):
        if name not in names:
            raise ConfigError(f"there is no column {name!r} in {uri}; its columns are: {', '.join(names)}")
    features = [name for name in names if name != label] if features is None else features
    if label in features or len(set(features)) < len(features):
        raise ConfigError(
            f"columns are {', '.join(features)}: a feature may stand there once, and the label {label!r} not"
        )
    return Schema((label, *features), tuple(names))


def parse_block(
    data: Buffer, names: Sequence[str], schema: Schema, nulls: NullPolicy, dtype: npt.DTypeLike = np.float64
) -> Parsed:
    """A block of whole rows without a header, its fields called `names`, as a matrix in the schema's order.

    Raises `BlockError` for a ragged row, a word, and, under `raise`, for an empty field, NaN or infinity.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    raw = memoryview(data)
    size = len(raw)
    read = arrow_csv.ReadOptions(use_threads=False, block_size=max(size, 1), column_names=list(names))
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.float64()), include_columns=list(schema.columns), check_utf8=False
    )
    quoted = QUOTE.search(raw) is not None  # newlines inside quotes cost pyarrow another pass: only where they may be
    try:
        table = arrow_csv.read_csv(pa.py_buffer(raw), read, arrow_csv.ParseOptions(newlines_in_values=quoted), convert)
    except pa.ArrowInvalid as error:
        if not bytes(raw).strip():
            return Parsed(np.empty((0, len(schema.columns)), dtype), np.empty(0, np.int64))
        faults = locate(raw, names, schema, dtype)
        fault = next((f for f in faults if f.kind is SchemaError or "no number" in f.text), None)
        if fault is None and (trimmed := BLANK_FIELD.sub(b"", bytes(raw))) != raw:
            return parse_block(trimmed, names, schema, nulls, dtype)  # pyarrow takes "" for null, and "  " for a word
        raise BlockError(fault or Fault(0, SchemaError, f"pyarrow cannot read the block here: {error}")) from error
    with np.errstate(over="ignore", invalid="ignore"):
        columns = [c.combine_chunks().to_numpy(zero_copy_only=False).astype(dtype, copy=False) for c in table.columns]
        # a sum is finite only if all its terms are, and is the fastest look at them; it may overflow: look again
        suspects = [i for i, column in enumerate(columns) if not np.isfinite(column.sum())]
    flaws = {i: ~np.isfinite(columns[i]) for i in suspects}
    flaws = {i: flaw for i, flaw in flaws.items() if flaw.any()}
    if flaws and nulls.action == "raise":
        raise BlockError(next(locate(raw, names, schema, dtype)))
    if nulls.action == "fill":
        columns = [np.where(flaws[i], nulls.value, c) if i in flaws else c for i, c in enumerate(columns)]
    dropped = np.logical_or.reduce(list(flaws.values())) if flaws and nulls.action == "drop" else []
    filled = sum(int(flaw.sum()) for flaw in flaws.values()) if nulls.action == "fill" else 0
    return Parsed(_interleave(columns, table.num_rows, dtype), np.flatnonzero(dropped), filled)


def _interleave(columns: Sequence[npt.NDArray[np.floating]], rows: int, dtype: npt.DTypeLike) -> Matrix:
    """Columns → row-major [rows, C], in strips that stay in the processor's cache while each column is laid in."""
    matrix = np.empty((rows, len(columns)), dtype)
    strip = 4096
    for start in range(0, rows, strip):
        for j, column in enumerate(columns):
            matrix[start : start + strip, j] = column[start : start + strip]
    return matrix


def locate(data: Buffer, names: Sequence[str], schema: Schema, dtype: npt.DTypeLike) -> Iterator[Fault]:
    """The faults of a block, row by row, as a person would want to be told of them."""
    text = bytes(data).decode("utf-8", errors="replace")
    wanted = [(list(names).index(name), name) for name in schema.columns]
    rows = (row for row in csv.reader(io.StringIO(text, newline="")) if row)  # blank lines are no rows
    for number, row in enumerate(rows):
        if len(row) != len(names):
            yield Fault(
                number, SchemaError, f"has {len(row)} fields, not {len(names)}: {','.join(row)!r}; repair the row"
            )
            continue
        for index, name in wanted:
            if (flaw := _flaw(row[index], np.dtype(dtype))) is not None:
                remedy = (
                    "correct the field" if "no number" in flaw else "correct it, or take nulls=drop or nulls=fill=VALUE"
                )
                yield Fault(number, BadValueError, f"column {name!r}: {flaw}; {remedy}")


def _flaw(field: str, dtype: np.dtype[Any]) -> str | None:
    """What is wrong with a field, in pyarrow's understanding of numbers; None: nothing."""
    text = field.strip(" \t\r")
    if NUMBER.fullmatch(text):
        return f"{field!r} is too large for {dtype}" if abs(float(text)) > float(np.finfo(dtype).max) else None
    if not text:
        return "the field is empty"
    if INFINITY.fullmatch(text):
        return f"{field!r} is infinite"
    if text in _null_words():
        return f"{field!r} stands for no value"
    return f"{field!r} is no number"


def _null_words() -> frozenset[str]:
    from pyarrow import csv as arrow_csv

    return frozenset(arrow_csv.ConvertOptions().null_values) | {"nan", "NaN", "NAN", "-nan", "+nan"}
