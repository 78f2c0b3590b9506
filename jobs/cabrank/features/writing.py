"""Engineered rows as CSV parts: a part for each part, of the same number, streamed block by block.

Numbers are written with as many digits as bring the same number back, so that a part read again and a batch made on
the fly are equal to the last bit.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import NamedTuple

import numpy as np

from cabrank.data.formats import PARQUET
from cabrank.data.listing import Part
from cabrank.data.metadata import META, PartRecord, PlanFile, folder_parts, publish
from cabrank.data.parse import Schema
from cabrank.data.reading import read_blocks
from cabrank.data.sources import UNPACK
from cabrank.data.statistics import Moments
from cabrank.errors import ConfigError
from cabrank.features.engineer import Engineered
from cabrank.features.steps import Matrix
from cabrank.nulls import NullPolicy
from cabrank.store import Store

FITTED = META + "features.json"
"""Where the fitted spec lies, below the folder of the parts that it made."""


class Written(NamedTuple):
    """A block that was written: rows read for it, rows that nulls=drop left out of it."""

    rows: int
    dropped: int


class Destination(NamedTuple):
    """A folder (a URI that ends in "/") for the parts that are made."""

    folder: str
    store: Store

    def names(self, parts: Sequence[Part]) -> list[str]:
        """What the parts will be called; `ConfigError` where they would replace their source, share a name, or lie
        among parts that were not made from these."""
        names = [_csv_name(part.name) for part in parts]
        if any(part.folder == self.folder for part in parts):
            raise ConfigError(f"{self.folder} is where the data lies: engineered parts need a folder of their own")
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise ConfigError(f"two parts are called {twice[0]!r}: engineer one folder after the other")
        strangers = [part.name for part in folder_parts(self.folder, self.store) if part.name not in names]
        if strangers:
            raise ConfigError(
                f"{self.folder} already holds {', '.join(strangers[:3])}, which would be read as one data set with "
                "what is made here; choose an empty folder, or remove what is there"
            )
        return names


def write_parts(
    parts: Sequence[Part], store: Store, schema: Schema, nulls: str, engineered: Engineered, to: Destination
) -> Iterator[Written]:
    """Writes the parts and, when all are there, the metadata beside them. When it breaks off, nothing stays behind."""
    names, records = to.names(parts), list[PartRecord]()
    try:
        with closing(read_blocks(parts, store, schema, NullPolicy.of(nulls))) as blocks:
            for place, of_part in groupby(blocks, key=lambda block: block.place):
                moments = []
                with to.store.writer(to.folder + names[place]) as file:
                    file.write(header(engineered.columns))
                    for block in of_part:
                        made = engineered(block.parsed.matrix)
                        file.write(to_csv(made))
                        moments.append(Moments.of(made))
                        yield Written(block.parsed.rows, block.parsed.dropped)
                records.append(_record(names[place], Moments.pooled(moments), to))
        publish(to.folder, PlanFile.make(engineered.columns, "raise", records), to.store)
    except BaseException:
        for record in records:
            to.store.delete(to.folder + record.name)
        raise


def _csv_name(name: str) -> str:
    """A part's name with the ending of plain CSV."""
    for ending in (*UNPACK, PARQUET):
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    return name if name.endswith(".csv") else name + ".csv"


def _record(name: str, moments: Moments, to: Destination) -> PartRecord:
    info = to.store.stat(to.folder + name)
    return PartRecord(name=name, bytes=info.size, pin=info.pin, rows=moments.count, statistics=moments)


def header(columns: Sequence[str]) -> bytes:
    """The header row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(columns)
    return text.getvalue().encode()


def to_csv(matrix: Matrix) -> bytes:
    """Rows [n, C] without a header, each number as the shortest text that reads back as the same number."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    names = [str(index) for index in range(matrix.shape[1])]
    table = pa.table([np.ascontiguousarray(column) for column in matrix.T], names=names)
    out = io.BytesIO()
    arrow_csv.write_csv(
        table, out, arrow_csv.WriteOptions(include_header=False, quoting_style="none", batch_size=1 << 14)
    )
    return out.getvalue()
