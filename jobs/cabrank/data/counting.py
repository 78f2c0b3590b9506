"""How many rows each part has: from the metadata beside it, and else from the part itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cabrank.data.listing import Part
from cabrank.data.metadata import read_counts
from cabrank.data.parse import Schema
from cabrank.data.reading import count_rows
from cabrank.errors import NoDataError
from cabrank.store import Store

log = logging.getLogger("cabrank")
SMALL_BYTES = 1_000_000  # parts without an entry, such as header-only ones, are counted without a word up to here


def part_counts(parts: Sequence[Part], store: Store, schema: Schema, partitions_glob: str | None = None) -> list[int]:
    """Rows of each part: from the metadata beside it, or, where there is none, counted now, and that is said."""
    known = read_counts(parts, store, partitions_glob)
    # a part that is listed with no rows costs next to nothing to look at, and would otherwise never be looked at
    unknown = [part for part in parts if not known.get(part.uri)]
    if unlisted := [part for part in unknown if part.uri not in known]:
        size = sum(part.size or 0 for part in unlisted)
        log.log(
            logging.WARNING if size > SMALL_BYTES or len(unlisted) == len(parts) else logging.INFO,
            "counting the rows of %d of %d parts (%.1f MB): no metadata; cabrank shard %s does it once for all",
            len(unlisted), len(parts), size / 1e6, parts[0].folder.removesuffix("/"),
        )  # fmt: skip
    counted = count_rows(unknown, store, schema)
    counts = [counted[part.uri] if part.uri in counted else known[part.uri] for part in parts]
    if not any(counts):
        raise NoDataError(f"{parts[0].uri}: a header and no rows, as in all {len(parts)} parts; check the glob")
    return counts
