"""The plan: who reads which rows. Pure arithmetic on integers: no I/O, no torch, no chance but a seed's permutation.

The parts, in plan order, laid end to end are one row space [0, N). Rank r of W owns one lane of it, a contiguous range,
so that it touches about P / W parts and not all of them; lanes differ by one row at most:

    N = 10, W = 3      lane 0 = [0, 3)      lane 1 = [3, 6)      lane 2 = [6, 10)

A lane is cut into batches of B rows, and what happens at its end is the tail policy, so that every rank can work out
every other rank's steps without talking (B = 2):

    drop     full batches only, as many as the shortest lane has:     1 1 1 steps, 4 rows left out
    pad      every lane as long as the longest, short ones repeat
             their last row with a weight of 0:                       2 2 2 steps, 2 rows repeated
    uneven   each lane to its own end, the last batch shorter:        2 2 2 steps (they may differ by one)

With K workers a rank's batches, not its rows, are dealt in K contiguous blocks, and a loader that takes one batch from
each worker in turn gets them all: how many batches there are, and which rows stand in each, does not depend on K.

An epoch that was broken off goes on, with any other W, B and K, on exactly the rows that nobody has read: what each
worker of each rank had read is a prefix of its block, so that the rest is a list of ranges of the row space. Laid end
to end, they are what the ranks share from then on. Remembered are only the `Leg`s: four numbers for each resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from cabrank.errors import ConfigError, NoDataError

Tail = Literal["drop", "pad", "uneven"]


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, stop) of one part, the part by its place in the listing."""

    part: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows of one rank: [start, stop) of the row space, then `repeated` times more the row `stop - 1`."""

    start: int
    stop: int
    repeated: int = 0
    borrowed: bool = False
    """No row is this batch's own: [start, stop) has stood in the batch before, or is another rank's."""

    @property
    def rows(self) -> int:
        """Rows of the tensor, repeated ones included."""
        return self.stop - self.start + self.repeated

    @property
    def owned(self) -> int:
        """Rows with a weight of 1."""
        return 0 if self.borrowed else self.stop - self.start


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of the row space that are shuffled together, and which places of the shuffled window are wanted."""

    rows: range
    places: range
    seed: tuple[int, ...] = ()

    def pick(self) -> npt.NDArray[np.int64]:
        """Which row of the window stands at each of the wanted places; shape [len(places)]."""
        order = np.random.default_rng(self.seed).permutation(len(self.rows))
        return order[self.places.start : self.places.stop].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of an epoch: every rank of `world` took `steps` batches (or all that it had, where that was fewer)."""

    world: int
    workers: int
    batch_size: int
    steps: int


@dataclass(frozen=True)
class Plan:
    """How an epoch over parts of `rows` rows is shared by `world` ranks, in batches of `batch_size` rows a rank."""

    rows: tuple[int, ...]
    """Rows of each part, in the order of the listing."""
    batch_size: int
    world: int = 1
    tail: Tail = "pad"
    seed: int | None = None
    """None reads the parts in the listing's order; a number shuffles the order of the parts."""
    epoch: int = 0
    """Shuffles differently in each epoch; without a seed it changes nothing."""
    legs: tuple[Leg, ...] = ()
    """What was read of this epoch before: the plan shares out the rest."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}: it counts rows and must be 1 or more")
        if self.world < 1:
            raise ConfigError(f"world is {self.world}: it counts ranks and must be 1 or more")
        if self.tail not in get_args(Tail):
            raise ConfigError(f"tail is {self.tail!r}: it must be one of {', '.join(get_args(Tail))}")
        if min(self.rows, default=0) < 0:
            raise ConfigError(f"a part has {min(self.rows)} rows: counts must be 0 or more")

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """The parts in the order in which the row space lays them, as places in the listing; shape [P]."""
        if self.seed is None:
            return np.arange(len(self.rows), dtype=np.int64)
        return np.random.default_rng((self.seed, self.epoch)).permutation(len(self.rows)).astype(np.int64)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each part of `order` starts in the row space, and N at the end; shape [P + 1]."""
        counts = np.asarray(self.rows, dtype=np.int64)[self.order]
        return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    @property
    def total(self) -> int:
        """N, the rows of all parts."""
        return int(self.offsets[-1])

    @cached_property
    def unread(self) -> tuple[range, ...]:
        """Ranges of the row space that are left after the legs, in order; all of it where there are none."""
        left: tuple[range, ...] = (range(self.total),) if self.total else ()
        for leg in self.legs:
            before = Plan((sum(map(len, left)),), leg.batch_size, leg.world, self.tail)
            left = tuple(part for rest in before.rest_of(leg) for part in _cut(left, rest))
        return left

    def rest_of(self, leg: Leg) -> Iterator[range]:
        """What a plan's ranks have not read when each has taken `leg.steps` batches, in order."""
        for rank in range(self.world):
            lane, size = self.lane(rank), self.batch_size
            for worker in range(leg.workers):
                block = self.worker_steps(rank, worker, leg.workers)
                # batches are taken from each worker in turn; where a repeated row stands alone, nothing is left
                own = min(len(range(worker, leg.steps, leg.workers)), len(block))
                yield lane[(block.start + own) * size : block.stop * size]
            yield lane[self.steps(rank) * size :]  # what no batch would have held is still unread

    @cached_property
    def todo(self) -> int:
        """Rows that this plan shares out: N, or what the legs have left."""
        return sum(map(len, self.unread))

    def lane(self, rank: int) -> range:
        """The rows that `rank` owns, as places in `unread` laid end to end."""
        if not 0 <= rank < self.world:
            raise ConfigError(f"rank is {rank}: with {self.world} ranks it must be 0 to {self.world - 1}")
        return range(self.todo * rank // self.world, self.todo * (rank + 1) // self.world)

    def steps(self, rank: int) -> int:
        """Batches that are left of the epoch for `rank`: the same for all ranks under `drop` and `pad`."""
        if self.tail == "drop":
            return self.todo // (self.world * self.batch_size)
        longest = -(-self.todo // self.world)
        return -(-(longest if self.tail == "pad" else len(self.lane(rank))) // self.batch_size)

    def batch(self, rank: int, step: int) -> Batch:
        """The rows of one step, 0 ≤ step < steps(rank), as places in `unread`."""
        lane = self.lane(rank)
        start = lane.start + step * self.batch_size
        stop = min(start + self.batch_size, lane.stop)
        if self.tail != "pad":
            return Batch(start, stop)
        longest = -(-self.todo // self.world)  # every lane is this long, or one row shorter
        repeated = min((step + 1) * self.batch_size, longest) - (stop - lane.start)
        if start < stop:
            return Batch(start, stop, repeated)
        last = lane.stop - 1 if len(lane) else min(start, self.todo - 1)  # there may be fewer rows than ranks
        return Batch(last, last + 1, repeated - 1, borrowed=True)

    def worker_steps(self, rank: int, worker: int, workers: int) -> range:
        """The steps of `rank` that one of its workers reads: a contiguous block, the first ones a step longer."""
        each, longer = divmod(self.steps(rank), workers)
        first = worker * each + min(worker, longer)
        return range(first, first + each + (worker < longer))

    def ranges(self, start: int, stop: int) -> list[range]:
        """Where places [start, stop) of `unread` lie in the row space."""
        return _cut(self.unread, range(start, stop))

    def windows(self, start: int, stop: int, size: int) -> Iterator[Window]:
        """Places [start, stop) of `unread`, a window of the row space at a time; in one piece where `size` is 0.

        Windows lie on a grid of `size` rows, and each is shuffled by itself, by seed, epoch and its own number: what
        stands at a place does not depend on who asks.
        """
        for rows in self.ranges(start, stop):
            if not size:
                yield Window(rows, range(len(rows)))
                continue
            for first in range(rows.start // size * size, rows.stop, size):
                whole = range(first, min(first + size, self.total))
                places = range(max(rows.start, first) - first, min(rows.stop, whole.stop) - first)
                yield Window(whole, places, (self.seed or 0, self.epoch, 1 + first // size))

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """What rows [start, stop) of the row space are in the parts; parts without rows do not appear."""
        if start >= stop:
            return
        index = int(np.searchsorted(self.offsets, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self.offsets[index + 1]))
            if end > start:
                base = int(self.offsets[index])
                yield Span(int(self.order[index]), start - base, end - base)
            start, index = max(start, end), index + 1

    @property
    def left_out(self) -> int:
        """Rows that no rank reads in an epoch (only `drop` leaves any out)."""
        return self.todo - self.world * self.steps(0) * self.batch_size if self.tail == "drop" else 0

    @property
    def repeated(self) -> int:
        """Rows that stand in a batch with a weight of 0 (only `pad` repeats any)."""
        return -self.todo % self.world if self.tail == "pad" and self.todo else 0


def joined(ranges: Iterable[range]) -> list[range]:
    """The same rows, with ranges that follow one another made one."""
    out: list[range] = []
    for piece in ranges:
        if out and out[-1].stop == piece.start:
            out[-1] = range(out[-1].start, piece.stop)
        else:
            out.append(piece)
    return out


def _cut(ranges: Sequence[range], places: range) -> list[range]:
    """The part of `ranges`, laid end to end, that `places` names."""
    out, base = [], 0
    for piece in ranges:
        low, high = max(places.start, base), min(places.stop, base + len(piece))
        if low < high:
            out.append(piece[low - base : high - base])
        base += len(piece)
    return out


def make_plan(
    rows: Sequence[int], *, batch_size: int, world: int = 1, tail: Tail = "pad", seed: int | None = None, epoch: int = 0
) -> Plan:
    """A plan that reads something: `NoDataError` where there are no rows, `ConfigError` where `drop` leaves no step."""
    plan = Plan(tuple(map(int, rows)), batch_size, world, tail, seed, epoch)
    if not plan.total:
        raise NoDataError(f"the {len(plan.rows)} parts hold no rows: nothing to read")
    if not plan.steps(0) and tail == "drop":
        raise ConfigError(
            f"batch_size is {batch_size} on {world} ranks, which is larger than the data ({plan.total} rows), and "
            f"tail='drop' keeps full batches only: no step is left; make it {max(1, plan.total // world)} or less, "
            "or take tail='pad' or 'uneven'"
        )
    return plan
