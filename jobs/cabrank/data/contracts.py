"""What others' statistics promise of the values, held while they are read for the first time.

`.meta/stats` may come from another job than the one that wrote the parts that lie there now (Spark's, for one). A value
outside its column's minimum and maximum, or a mean of all rows that is another, says that the two do not belong
together. Statistics that cabrank published with the very bytes that are read promise nothing that can be broken, and
cost nothing here.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cabrank.data.listing import Part
from cabrank.data.metadata import META, STATS, read_plan, same_bytes, table_files
from cabrank.data.metadata import REMEDY as RENEW
from cabrank.data.reading import Block
from cabrank.errors import MetadataError
from cabrank.store import Store

REMEDY = "parts and statistics do not belong together: run cabrank shard on the folder, or restore the parts"
TOLERANCES = {"float64": 1e-9, "float32": 1e-6, "bfloat16": 1e-2}
"""By the matrix's dtype: values are rounded to it, and the statistics once to text."""


@dataclass(frozen=True)
class Statistics:
    """Others' statistics of one folder, of all its rows together."""

    uri: str
    """Of the file, or the first of them."""
    values: dict[str, dict[str, float]]
    """column → count, mean, stddev, min, max, as far as they are given."""


def read_statistics(folder: str, parts: Sequence[Part], store: Store) -> Statistics | None:
    """What `.meta/stats` says; None where there is nothing, or where it was published by `cabrank shard` together with
    the very bytes of `parts`, so that it cannot be wrong about them. `MetadataError` for a malformed table."""
    files = table_files(folder + META + STATS, store)
    plan = read_plan(folder, store)
    records = {record.name: record for record in plan.parts} if plan is not None else {}
    known = all(same_bytes(records.get(part.name), part) for part in parts)
    if not files or (plan is not None and (plan.state == "publishing" or known)):
        return None
    values: dict[str, dict[str, float]] = {}
    for info in files:
        for column, name, value in _parse_statistics(store.read(info), info.uri):
            if values.setdefault(column, {}).setdefault(name, value) != value:
                raise MetadataError(f"{info.uri}: a second {name} of column {column!r}; {RENEW}")
    return Statistics(files[0].uri, values)


def _parse_statistics(data: bytes, uri: str) -> Iterator[tuple[str, str, float]]:
    """(column, statistic, value) of each field that has one; lines that we do not know are none of ours."""
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        if header[:1] != ["summary"]:
            raise MetadataError(f"{uri}: line 1: the header is {','.join(header)!r}, not 'summary,…'; {RENEW}")
        for row in reader:
            if row[:1] and row[0] in ("count", "mean", "stddev", "min", "max"):
                pairs = zip(header[1:], row[1:], strict=True)
                yield from ((column, row[0], float(text)) for column, text in pairs if text)
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise MetadataError(f"{uri}: no CSV table of statistics: {error}; {RENEW}") from error


@dataclass
class _Folder:
    """One folder's statistics, and what was seen of its parts so far."""

    statistics: Statistics
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    waiting: set[str]
    """URIs of the parts that are not read whole yet."""
    sums: npt.NDArray[np.float64]
    count: int = 0


@dataclass
class Contract:
    """For the parts of one dataset; its columns in the matrix's order."""

    columns: Sequence[str]
    tolerance: float
    _folders: dict[str, _Folder] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[Part], columns: Sequence[str], dtype: str, store: Store) -> Contract:
        """Reads the statistics beside the parts; `MetadataError` where they are malformed."""
        contract = cls(columns, TOLERANCES[dtype])
        for folder in sorted({part.folder for part in parts}):
            own = [part for part in parts if part.folder == folder]
            if (found := read_statistics(folder, own, store)) is not None:
                contract._folders[folder] = _begin(found, own, columns, contract.tolerance)
        return contract

    def hold(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The same blocks; `MetadataError`, with URI, row and column, at the first value that breaks the promise."""
        for block in blocks:
            folder = self._folders.get(block.part.folder)
            if folder is not None and block.part.uri in folder.waiting:
                self._check(folder, block)
            yield block

    def _check(self, folder: _Folder, block: Block) -> None:
        values = block.parsed.matrix
        outside = (values < folder.low) | (values > folder.high)
        if outside.any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            places = np.delete(np.arange(block.parsed.rows), block.parsed.bad)
            raise MetadataError(
                f"{block.part.uri}: row {block.first_row + int(places[row]) + 1}: column {self.columns[column]!r}: "
                f"{values[row, column]} is outside {folder.low[column]} to {folder.high[column]}, the range in "
                f"{folder.statistics.uri}; {REMEDY}"
            )
        if block.first_row == 0 or folder.count:
            folder.sums += values.sum(axis=0, dtype=np.float64)
            folder.count += len(values)
        if block.last:
            folder.waiting.discard(block.part.uri)
            if not folder.waiting:
                self._check_means(folder)

    def _check_means(self, folder: _Folder) -> None:
        """Only where exactly as many rows were seen as the statistics are of: all, each once."""
        for place, name in enumerate(self.columns):
            said = folder.statistics.values.get(name, {})
            mean, count = said.get("mean"), said.get("count")
            if mean is None or count != folder.count:
                continue
            seen = folder.sums[place] / folder.count
            scale = max(abs(mean), abs(said.get("max", mean)), abs(said.get("min", mean)))
            if not math.isclose(seen, mean, rel_tol=self.tolerance, abs_tol=self.tolerance * scale):
                raise MetadataError(
                    f"{folder.statistics.uri}: column {name!r}: the mean of its {folder.count} rows is {mean} there "
                    f"and {seen} in the parts; {REMEDY}"
                )


def _begin(found: Statistics, parts: Sequence[Part], columns: Sequence[str], tolerance: float) -> _Folder:
    def bound(name: str, default: float) -> npt.NDArray[np.float64]:
        return np.array([found.values.get(column, {}).get(name, default) for column in columns])

    low, high = bound("min", -math.inf), bound("max", math.inf)
    slack = tolerance * np.where(np.isfinite(low) & np.isfinite(high), np.maximum(abs(low), abs(high)), 0)
    return _Folder(found, low - slack, high + slack, {part.uri for part in parts}, np.zeros(len(columns)))
