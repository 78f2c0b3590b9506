"""Between reading and the cache: what a part's entry is called, and blocks put into it in their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Condition

import numpy as np
import numpy.typing as npt

from cabrank.data.cache import DecodedCache, Fill, Key, part_key
from cabrank.data.listing import Part
from cabrank.data.parse import Parsed, Schema, parser_version
from cabrank.nulls import NullPolicy


@dataclass(frozen=True)
class PartCache:
    """The cache, for parts that are read with one schema, policy and dtype."""

    cache: DecodedCache
    schema: Schema
    nulls: NullPolicy
    dtype: npt.DTypeLike

    def key(self, part: Part) -> Key | None:
        """None for a part that has no pin."""
        return part_key(
            part.uri, part.info.pin, self.schema.columns, str(self.nulls), np.dtype(self.dtype).str, parser_version()
        )

    def find(self, part: Part) -> Parsed | None:
        """The whole part as it was parsed once; None where it is not there."""
        entry = self.cache.get(self.key(part))
        if entry is None:
            return None
        # which rows are left out follows from the values: they are the ones that raise would have refused
        bad = (
            np.flatnonzero(~np.isfinite(entry.matrix).all(axis=1)) if entry.facts["dropped"] else np.empty(0, np.int64)
        )
        return Parsed(entry.matrix, bad, entry.facts["filled"])

    def begin(self, part: Part, rows: int) -> OrderedFill | None:
        """A place for the blocks of a part of about `rows` rows; None where they would not be stored."""
        fill = self.cache.begin(self.key(part), rows, len(self.schema.columns), np.dtype(self.dtype).str)
        return OrderedFill(fill) if fill.stores else None


@dataclass
class OrderedFill:
    """One entry in the making, its blocks parsed by several threads: each puts its own in when those before it are in.

    It happens before the block is handed out, so that what a user does to a batch never reaches the cache.
    """

    fill: Fill
    _next: int = 0
    _dropped: int = 0
    _filled: int = 0
    _open: bool = True
    _changed: Condition = field(default_factory=Condition)

    def add(self, number: int, parsed: Parsed, last: bool) -> None:
        """Block `number` of the part, counted from 0; the last one publishes the entry."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number or not self._open)
            if not self._open:
                return
            self.fill.add(parsed.values)
            self._next, self._dropped, self._filled = (
                number + 1,
                self._dropped + parsed.dropped,
                self._filled + parsed.filled,
            )
            if last:
                self.fill.commit({"dropped": self._dropped, "filled": self._filled})
            self._changed.notify_all()

    def close(self) -> None:
        """Gives up what is not published; nobody waits any longer."""
        with self._changed:
            self._open = False
            self.fill.close()
            self._changed.notify_all()
