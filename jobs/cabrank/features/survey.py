"""One pass over a table of any size, in memory that does not grow with it: what the audit knows of its rows.

exact                rows, missing fields of each column
a sample             at most k rows, each as likely as any other: those with the smallest of random keys
a sketch of rows     the K smallest of their hashes, with counts: finds rows that two tables share. Whichever rows
                     it keeps of one table it also keeps of the other, because their hashes decide (a bottom-K
                     sketch; Cohen and Kaplan 2007). With K distinct rows or fewer nothing is left out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cabrank.data.listing import Part
from cabrank.data.parse import Schema
from cabrank.errors import NoDataError
from cabrank.features.text import Hashes, mix, text_blocks, text_hash
from cabrank.store import Store

SKETCH_ROWS = 1 << 19  # 8 MB of hashes and counts a table


@dataclass
class RowSketch:
    """The smallest `size` hashes of distinct rows, and how many rows have each."""

    size: int = SKETCH_ROWS
    hashes: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    counts: Any = field(default_factory=lambda: np.empty(0, np.int64))
    whole: bool = True
    """Whether every row that was added is in it."""

    def add(self, rows: Hashes) -> None:
        """Takes in the hashes [n] of more rows."""
        rows = rows if self.whole else rows[rows <= self.hashes[-1]]
        every = np.concatenate([self.hashes, rows])
        counts = np.concatenate([self.counts, np.ones(len(rows), np.int64)])
        self.hashes, place = np.unique(every, return_inverse=True)
        self.counts = np.bincount(place, counts, minlength=len(self.hashes)).astype(np.int64)
        if len(self.hashes) > self.size:
            self.whole = False
            self.hashes, self.counts = self.hashes[: self.size], self.counts[: self.size]

    @property
    def repeated(self) -> float:
        """Share of the rows that stand in the table more than once."""
        return float(self.counts[self.counts > 1].sum() / max(self.counts.sum(), 1))

    def shared_with(self, train: RowSketch) -> float:
        """Share of this table's rows that `train` holds, too."""
        limits = [sketch.hashes[-1] for sketch in (self, train) if not sketch.whole]
        own = self.hashes <= min(limits) if limits else np.ones(len(self.hashes), bool)
        shared = np.isin(self.hashes[own], train.hashes)
        return float(self.counts[own][shared].sum() / max(self.counts[own].sum(), 1))


@dataclass
class Survey:
    """What one pass found."""

    names: tuple[str, ...]
    rows: int
    missing: dict[str, int]
    sample: Any
    """A pyarrow table of strings, at most as many rows as were asked for, in the order of the data."""
    sketch: RowSketch

    @property
    def whole(self) -> bool:
        """Whether the sample is all there is."""
        return len(self.sample) == self.rows


@dataclass
class _Sample:
    """Rows with the smallest keys so far."""

    size: int
    random: np.random.Generator
    tables: list[Any] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    limit: float = 1.0

    def add(self, table: Any) -> None:
        keys = self.random.random(len(table))
        chosen = np.flatnonzero(keys < self.limit)
        self.tables.append(table.take(chosen))
        self.keys.append(keys[chosen])
        if sum(map(len, self.keys)) > 2 * self.size:
            self.prune()

    def prune(self) -> Any:
        """Keeps the `size` smallest keys' rows, in order, and returns them."""
        import pyarrow as pa

        table, keys = pa.concat_tables(self.tables).combine_chunks(), np.concatenate(self.keys)
        if len(keys) > self.size:
            chosen = np.sort(np.argpartition(keys, self.size)[: self.size])
            table, keys = table.take(chosen), keys[chosen]
            self.limit = float(keys.max())
        self.tables, self.keys = [table], [keys]
        return table


def survey(
    parts: Sequence[Part],
    store: Store,
    schema: Schema,
    *,
    sample_rows: int,
    seed: int,
    advance: Callable[[int], object] = int,
) -> Survey:
    """Reads every row once, as text. `NoDataError` where there is none."""
    names = schema.columns
    sample, sketch, rows = _Sample(sample_rows, np.random.default_rng(seed)), RowSketch(), 0
    missing = dict.fromkeys(names, 0)
    for table in text_blocks(parts, store, schema):
        if not len(table):
            continue
        rows += len(table)
        for name in names:
            missing[name] += table[name].null_count
        sample.add(table)
        sketch.add(row_hash(table))
        advance(len(table))
    if not rows:
        raise NoDataError(f"{parts[0].uri}: holds a header and no rows: there is nothing to audit")
    return Survey(names, rows, missing, sample.prune(), sketch)


def row_hash(table: Any) -> Hashes:
    """A hash [n] of each row's text, whatever the order of the columns."""
    total = np.zeros(len(table), np.uint64)
    for number, name in enumerate(sorted(table.column_names)):
        total += mix(text_hash(table[name]) + np.uint64(number + 1))
    return mix(total)
