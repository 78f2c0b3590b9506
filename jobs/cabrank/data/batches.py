"""Blocks → batches: the rows of a lane, taken a batch at a time, without a copy where they lie in one block.

spans      ├── part 3 ──┤├────── part 4 ──────┤
blocks     ├─────┤├─────┤├────────┤├──────────┤        as they were parsed
batches    ├────┤├────┤├────┤├────┤├────┤├────┤        pieces: views of the blocks; one copy where there are several
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cabrank.data.listing import Part
from cabrank.data.parse import Matrix
from cabrank.data.reading import Block
from cabrank.data.shards import Span, Window
from cabrank.errors import MetadataError

KEPT_BUFFERS = 8
"""Of batches in use, so many are remembered; one that is forgotten is freed by itself when its batch is."""
NONE_BAD: npt.NDArray[np.int64] = np.empty(0, np.int64)


class Piece(NamedTuple):
    """Rows that lie together: `values` [n, C], a view; `bad`: places in it of the rows that nulls=drop leaves out."""

    values: Matrix
    bad: npt.NDArray[np.int64] = NONE_BAD

    def rows(self, start: int, stop: int) -> Piece:
        """Rows [start, stop) of it."""
        first, behind = np.searchsorted(self.bad, (start, stop)) if len(self.bad) else (0, 0)
        return Piece(self.values[start:stop], self.bad[first:behind] - start)

    @property
    def kept(self) -> Matrix:
        """The rows that are left, [n - len(bad), C]; a view when none is left out."""
        return np.delete(self.values, self.bad, axis=0) if len(self.bad) else self.values


Read = Callable[[Sequence[Part], Sequence[int], Sequence[int]], Iterator[Block]]
"""(parts, a row of each behind which nothing is needed, rows expected in each) → blocks, as of `read_blocks`."""


def span_pieces(spans: Sequence[Span], parts: Sequence[Part], counts: Sequence[int], read: Read) -> Generator[Piece]:
    """The rows of the spans, in order. `MetadataError` where a part ends at another row than `counts` says."""
    places = [span.part for span in spans]
    for block in read([parts[i] for i in places], [span.stop for span in spans], [counts[i] for i in places]):
        span = spans[block.place]
        planned = counts[span.part]
        if block.end_row > planned or (block.last and block.end_row < planned):
            raise wrong_count(block, planned)
        start, stop = max(span.start, block.first_row), min(span.stop, block.end_row)
        if start < stop:
            whole = Piece(block.parsed.values, block.parsed.bad)
            yield whole.rows(start - block.first_row, stop - block.first_row)


def wrong_count(block: Block, planned: int) -> MetadataError:
    """A part does not hold the rows that its metadata claims."""
    holds = f"{block.end_row} rows" if block.last else f"at least {block.end_row} rows"
    folder = block.part.folder
    return MetadataError(
        f"{block.part.uri}: holds {holds}, and its metadata says {planned}; "
        f"renew it with: cabrank shard {folder.removesuffix('/')}"
    )


class Buffers:
    """Memory for batches that span blocks, used again once nobody holds the batch that it was last used for.

    Touching fresh memory for the first time costs more than copying into it. Each time it is lent out as a new array,
    which every view of it keeps alive; when that is gone, so are all of them, tensors included.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[npt.NDArray[np.uint8], weakref.ref[Matrix]]] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()  # memory stays in its process

    def take(self, rows: int, columns: int, dtype: npt.DTypeLike) -> Matrix:
        """An array [rows, columns], its values whatever they are."""
        kind = np.dtype(dtype)
        size = rows * columns * kind.itemsize
        fitting = [memory for memory, lease in self._lent if lease() is None and len(memory) >= size]
        memory = fitting[0] if fitting else np.empty(size, np.uint8)
        # over the buffer protocol, so that views of the lease refer to it, and not past it to the memory
        lease: Matrix = np.frombuffer(memory.data, kind, rows * columns)
        others = [(old, ref) for old, ref in self._lent if old is not memory and ref() is not None]
        self._lent = [(memory, weakref.ref(lease)), *others][:KEPT_BUFFERS]
        return lease.reshape(rows, columns)


class RowStream:
    """The pieces of one lane, or of one lane after the other, to be taken in any number of rows."""

    def __init__(self, pieces: Iterator[Piece], buffers: Buffers) -> None:
        self._pieces = pieces
        self._buffers = buffers
        self._rest: Piece | None = None

    def take(self, rows: int) -> Piece | None:
        """The next `rows` rows, fewer only at the end of the stream, None behind it.

        They are a view of their block where they lie in one, and else one copy, made piece by piece as the blocks
        arrive, so that a batch of many blocks does not keep them all in memory.
        """
        first = self._next(rows)
        if first is None or len(first.values) == rows:
            return first
        joined = self._buffers.take(rows, first.values.shape[1], first.values.dtype)
        bad, count = [], 0
        piece: Piece | None = first
        while piece is not None:
            joined[count : count + len(piece.values)] = piece.values
            bad.append(piece.bad + count)
            count += len(piece.values)
            piece = self._next(rows - count)
        return Piece(joined[:count], np.concatenate(bad))

    def _next(self, rows: int) -> Piece | None:
        """At most `rows` rows that lie together; None where none are left or wanted."""
        if not rows:
            return None
        piece = self._rest if self._rest is not None else next(self._pieces, None)
        if piece is None:
            return None
        self._rest = piece.rows(rows, len(piece.values)) if len(piece.values) > rows else None
        return piece.rows(0, min(rows, len(piece.values)))


def shuffled(pieces: Iterator[Piece], windows: Iterable[Window], buffers: Buffers) -> Iterator[Piece]:
    """The wanted rows of each window, in its shuffled order: one gather, and a copy before it where blocks meet."""
    rows = RowStream(pieces, buffers)
    for window in windows:
        whole, pick = rows.take(len(window.rows)), window.pick()
        if whole is None:
            return
        out = buffers.take(len(pick), whole.values.shape[1], whole.values.dtype)
        # clip, because raise would go through a buffer; no place is out of range
        np.take(whole.values, pick, axis=0, out=out, mode="clip")
        yield Piece(out, np.flatnonzero(np.isin(pick, whole.bad)) if len(whole.bad) else NONE_BAD)
