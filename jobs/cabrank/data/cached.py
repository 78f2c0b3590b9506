"""Between reading and the cache: what a part's entry is called, and blocks put into it in their order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Condition

import numpy as np

from cabrank.data.cache import DecodedCache, Fill, Key, part_key
from cabrank.data.listing import Part
from cabrank.data.parse import Dtype, Parsed, Schema, matrix_dtype, parser_version
from cabrank.nulls import NullPolicy


@dataclass(frozen=True)
class PartCache:
    """The cache, for parts that are read with one schema, policy and dtype."""

    cache: DecodedCache
    schema: Schema
    nulls: NullPolicy
    dtype: Dtype

    def key(self, part: Part) -> Key | None:
        """None for a part that has no pin."""
        dtype = self.dtype if self.dtype == "bfloat16" else self._stored  # whose range is not the stored type's
        return part_key(part.uri, part.info.pin, self.schema.columns, str(self.nulls), str(dtype), parser_version())

    @property
    def _stored(self) -> str:
        return matrix_dtype(self.dtype).str

    def find(self, part: Part) -> Parsed | None:
        """The whole part as it was parsed once; None where it is not there."""
        entry = self.cache.get(self.key(part))
        if entry is None:
            return None
        # which rows are left out follows from the values: they are the ones that raise would have refused
        bad = (
            np.flatnonzero(~np.isfinite(entry.matrix).all(axis=1)) if entry.facts["dropped"] else np.empty(0, np.int64)
        )
        return Parsed(entry.matrix, bad, entry.facts["filled"], entry.facts["causes"])

    def begin(self, part: Part, rows: int) -> OrderedFill | None:
        """A place for the blocks of a part of about `rows` rows; None where they would not be stored."""
        fill = self.cache.begin(self.key(part), rows, len(self.schema.columns), self._stored)
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
    _causes: dict[str, Counter[str]] = field(default_factory=dict)
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
            for column, causes in parsed.causes.items():
                self._causes.setdefault(column, Counter()).update(causes)
            if last:
                self.fill.commit({"dropped": self._dropped, "filled": self._filled, "causes": self._causes})
            self._changed.notify_all()

    def close(self) -> None:
        """Gives up what is not published; nobody waits any longer."""
        with self._changed:
            self._open = False
            self.fill.close()
            self._changed.notify_all()
