"""`id,count`: the field's own table of rows, under `.meta/shards`. An id is the number in a part's name."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cabrank.data.listing import Part
from cabrank.errors import MetadataError
from cabrank.store import ObjectInfo, Store

COUNT = re.compile(r"0*[0-9]{1,18}", re.ASCII)  # fits what counts are added up in
REMEDY = "run cabrank shard on the folder to write it anew"


def sha256(data: bytes) -> str:
    """What tells whether a table is the very one that was published."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Table:
    """All `id,count` files of one folder."""

    counts: dict[int, tuple[int, str]]
    """id → rows, and the file and line that say so."""
    files: dict[str, str]
    """URI → sha256."""

    @classmethod
    def read(cls, files: Iterable[ObjectInfo], store: Store) -> Table:
        """Reads and joins the files; `MetadataError` for a malformed one, or one id with two counts."""
        table = cls({}, {})
        for info in files:
            data = store.read(info)
            table.files[info.uri] = sha256(data)
            for number, count, line in _parse_counts(data, info.uri):
                here = f"{info.uri}: line {line}"
                known, where = table.counts.setdefault(number, (count, here))
                if known != count:
                    raise MetadataError(f"{here}: id {number} has {count} rows, but {known} in {where}; {REMEDY}")
        return table

    def check(self, siblings: Sequence[Part], folder: str) -> None:
        """`MetadataError` for an id that no object of the folder has, and for an empty object that should have rows."""
        remedy = f"restore the part, or {REMEDY}"
        empty = {part.number: part for part in siblings if part.size == 0}
        present = {part.number for part in siblings if part.size != 0}
        for number, (count, where) in self.counts.items():
            if number in present or not count:
                continue
            if number in empty:
                raise MetadataError(
                    f"{where}: id {number} has {count} rows, but {empty[number].uri} is empty (0 bytes); {remedy}"
                )
            raise MetadataError(
                f"{where}: id {number} has {count} rows, but {folder} holds no part-{number:05d}…; {remedy}"
            )


def _parse_counts(data: bytes, uri: str) -> Iterable[tuple[int, int, int]]:
    """Id, count and line of each row."""
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        if header != ["id", "count"]:
            raise MetadataError(f"{uri}: line 1: the header is {','.join(header)!r}, not 'id,count'; {REMEDY}")
        for row in reader:
            if not row:
                continue
            if len(row) != 2 or not all(COUNT.fullmatch(field) for field in row):
                raise MetadataError(
                    f"{uri}: line {reader.line_num}: {','.join(row)!r} is no id and count (whole numbers of 18 digits "
                    f"at most); {REMEDY}"
                )
            yield int(row[0]), int(row[1]), reader.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise MetadataError(f"{uri}: no CSV text of ids and counts: {error}; {REMEDY}") from error
