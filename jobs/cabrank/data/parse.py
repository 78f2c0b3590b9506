"""What all formats share: which columns are read, and a block's columns → a row-major matrix of finite numbers.

Each format turns a block of its own into columns (`csv_text.py`, `parquet.py`); `settle` makes the matrix of them, so
that one policy decides alike on what is no finite number, wherever it comes from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cabrank.errors import BadValueError, ConfigError, DataError, SchemaError
from cabrank.nulls import NullPolicy

Matrix = npt.NDArray[np.floating]
Rows = npt.NDArray[np.int64]
Dtype = npt.DTypeLike | Literal["bfloat16"]
"""Of the values. numpy has no bfloat16: such values stay float32 here, within bfloat16's range, and whoever hands them
to torch rounds them."""

BLOCK_BYTES = 4 << 20
"""Large enough that pyarrow's start-up per block is nothing, small enough that a few of them stay in memory."""
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INFINITY = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
BFLOAT16_INFINITE = np.uint32(0x7F7F8000).view(np.float32)
"""The least float32 that rounds to infinity as a bfloat16."""


@dataclass(frozen=True)
class Schema:
    """The columns of the matrix, the label first and the features after it."""

    columns: tuple[str, ...]
    header: tuple[str, ...] = ()
    """All columns that a part must have, in any order; the same set as `columns` when it is empty."""
    source: str = "the first part"
    """Where the header was read."""

    @cached_property
    def expected(self) -> frozenset[str]:
        """The names that a part's header holds, no more and no fewer."""
        return frozenset(self.header or self.columns)

    def check(self, names: Sequence[str], uri: str) -> None:
        """`SchemaError` unless a part's header has exactly the expected names, in whatever order."""
        if frozenset(names) == self.expected:
            return
        missing = [name for name in self.header or self.columns if name not in names]
        extra = [name for name in names if name not in self.expected]
        faults = [f"lacks column {', '.join(map(repr, missing))}"] if missing else []
        faults += [f"has an extra column {', '.join(map(repr, extra))}"] if extra else []
        raise SchemaError(
            f"{uri}: its header {' and '.join(faults)}; all parts need the columns of {self.source}: "
            f"{', '.join(self.header or self.columns)}. Rewrite one of the two, or leave it out of the glob"
        )


def choose_columns(
    names: Sequence[str], uri: str, label: str | int | None = None, columns: str | Sequence[str] | None = None
) -> Schema:
    """The schema that the first part's column names and the caller's choice of label and features give.

    `label`: a column's name, or else its index, also as text, from 0 or, negative, from the end; the first column when
    None. `columns`: names of features, as a list or comma-separated; all but the label when None. `ConfigError` for one
    that is not there.
    """
    wanted = columns.split(",") if isinstance(columns, str) else columns
    features = [name.strip() for name in wanted] if wanted is not None else None
    label = _label_name(names, 0 if label is None else label)
    for name in (label, *(features or ())):
        if name not in names:
            raise ConfigError(f"there is no column {name!r} in {uri}; its columns are: {', '.join(names)}")
    features = [name for name in names if name != label] if features is None else features
    if label in features or len(set(features)) < len(features):
        raise ConfigError(
            f"columns are {', '.join(features)}: a feature may stand there once, and the label {label!r} not"
        )
    return Schema((label, *features), tuple(names), uri)


def _label_name(names: Sequence[str], label: str | int) -> str:
    """The name, where the label is an index and no name; else as it is."""
    if label in names or not re.fullmatch(r"-?\d+", str(label)):
        return str(label)
    index = int(label)
    return names[index] if -len(names) <= index < len(names) else str(label)


def check_names(names: Sequence[str], uri: str) -> None:
    """`SchemaError` unless every column has a name, and one of its own."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        fault = f"the column {twice[0]!r} twice" if twice and twice[0] else "a column without a name"
        raise SchemaError(f"{uri}: its header {','.join(names)!r} has {fault}; every column needs one name of its own")


@dataclass(frozen=True)
class Parsed:
    """One block's rows. `values`: [n, C] row-major, all rows; `bad`: places of the rows that `drop` leaves out."""

    values: Matrix
    bad: Rows
    filled: int = 0
    """Fields that `fill` replaced, in rows that are not left out."""
    causes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Why rows are left out: column → cause → fields. A row may have several; the causes are `explain`'s."""

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

    @classmethod
    def uncolumned(cls, rows: int) -> Parsed:
        """Rows that are known by their number alone, [rows, 0]."""
        return cls(np.empty((rows, 0)), np.empty(0, np.int64))


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


Fields = Callable[[Sequence[str], Rows], Any]
"""(columns, rows) → a pyarrow table of what stands there, as bytes or in its own type, null where it is null."""


def settle(
    columns: Sequence[npt.NDArray[Any]], schema: Schema, nulls: NullPolicy, dtype: Dtype, fields: Fields
) -> Parsed:
    """A block's columns, in the schema's order and NaN where there is no number, as a matrix that follows the policy.

    `fields` is asked about what is no finite number. Raises `BlockError` for the first row that `raise` refuses.
    """
    kind = matrix_dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        columns = [column.astype(kind, copy=False) for column in columns]
        if dtype == "bfloat16":
            columns = [np.where(abs(column) >= BFLOAT16_INFINITE, np.inf, column) for column in columns]
        # a sum is finite only if all its terms are, and is the fastest look at them; it may overflow: look again
        suspects = [i for i, column in enumerate(columns) if not np.isfinite(column.sum())]
    flaws = {i: ~np.isfinite(columns[i]) for i in suspects}
    flaws = {i: flaw for i, flaw in flaws.items() if flaw.any()}
    if not flaws:
        return Parsed(_interleave(columns, kind), np.empty(0, np.int64))
    policies = {i: nulls.of_column(schema.columns[i]) for i in flaws}
    if refused := [(int(flaws[i].argmax()), i) for i in flaws if policies[i].action == "raise"]:
        raise BlockError(_refusal(*min(refused), schema, dtype, fields))
    dropping = [i for i in flaws if policies[i].action == "drop"]
    dropped = np.logical_or.reduce([flaws[i] for i in dropping]) if dropping else np.zeros(len(columns[0]), np.bool_)
    filling = {i: policies[i].value for i in flaws if policies[i].action == "fill"}
    columns = [np.where(flaws[i], filling[i], c) if i in filling else c for i, c in enumerate(columns)]
    filled = sum(int((flaws[i] & ~dropped).sum()) for i in filling)
    bad = np.flatnonzero(dropped)
    causes = _causes({schema.columns[i]: flaws[i][bad] for i in dropping}, bad, dtype, fields)
    return Parsed(_interleave(columns, kind), bad, filled, causes)


def matrix_dtype(dtype: Dtype) -> np.dtype[Any]:
    """numpy's type of a matrix of such values."""
    return np.dtype(np.float32 if dtype == "bfloat16" else dtype)


def largest(dtype: Dtype) -> float:
    """The largest number that stays finite."""
    return float(np.nextafter(BFLOAT16_INFINITE, np.float32(0)) if dtype == "bfloat16" else np.finfo(dtype).max)


def _refusal(row: int, column: int, schema: Schema, dtype: Dtype, fields: Fields) -> Fault:
    name = schema.columns[column]
    _, words = explain(_text(fields([name], np.array([row]))[name][0].as_py()), dtype)
    remedy = "correct it, or take nulls=drop or nulls=fill=VALUE"
    return Fault(row, BadValueError, f"column {name!r}: {words}; {remedy}")


def _causes(
    flaws: Mapping[str, npt.NDArray[np.bool_]], rows: Rows, dtype: Dtype, fields: Fields
) -> dict[str, Counter[str]]:
    """Column → cause → fields, of the flaws in some rows."""
    causes: dict[str, Counter[str]] = {name: Counter() for name in flaws}
    found = fields(list(flaws), rows) if flaws else {}
    for name, flaw in flaws.items():
        for entry in found[name].take(np.flatnonzero(flaw)).value_counts():  # of few different ones, as a rule
            cause, _ = explain(_text(entry["values"].as_py()), dtype)
            causes[name][cause] += entry["counts"].as_py()
    return causes


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return None if value is None else str(value)


def explain(text: str | None, dtype: Dtype) -> tuple[Literal["empty", "NaN", "infinite", "too large"], str]:
    """Why what is no finite number is none, in a word and in words. None is a null of a format that has them."""
    if text is None:
        return "empty", "the value is null"
    stripped = text.strip(" \t\r")
    if not stripped:
        return "empty", "the field is empty"
    if INFINITY.fullmatch(stripped):
        return "infinite", f"{shortened(text)} is infinite"
    if NUMBER.fullmatch(stripped):
        return "too large", f"{shortened(text)} is too large for {dtype if dtype == 'bfloat16' else np.dtype(dtype)}"
    return "NaN", f"{shortened(text)} stands for no value"


def shortened(text: str) -> str:
    """`repr(text)`, its middle left out where a line would be too long to read."""
    return repr(text) if len(text) <= 80 else f"{text[:50]!r}…{text[-10:]!r} ({len(text)} characters)"


def _interleave(columns: Sequence[npt.NDArray[np.floating]], dtype: np.dtype[Any]) -> Matrix:
    """Columns → row-major [rows, C], in strips that stay in the processor's cache while each column is laid in."""
    rows = len(columns[0])
    matrix = np.empty((rows, len(columns)), dtype)
    strip = 4096
    for start in range(0, rows, strip):
        for j, column in enumerate(columns):
            matrix[start : start + strip, j] = column[start : start + strip]
    return matrix


def parser_version() -> str:
    """Names the rules by which bytes become numbers: what one of them made is no other's."""
    import pyarrow as pa

    return f"pyarrow-{pa.__version__}"
