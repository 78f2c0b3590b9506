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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def lane(self, rank: int) -> range:
        """The rows of the row space that `rank` owns."""
        if not 0 <= rank < self.world:
            raise ConfigError(f"rank is {rank}: with {self.world} ranks it must be 0 to {self.world - 1}")
        return range(self.total * rank // self.world, self.total * (rank + 1) // self.world)

    def steps(self, rank: int) -> int:
        """Batches an epoch has for `rank`: the same for all ranks under `drop` and `pad`."""
        if self.tail == "drop":
            return self.total // (self.world * self.batch_size)
        longest = -(-self.total // self.world)
        return -(-(longest if self.tail == "pad" else len(self.lane(rank))) // self.batch_size)

    def batch(self, rank: int, step: int) -> Batch:
        """The rows of one step, 0 ≤ step < steps(rank)."""
        lane = self.lane(rank)
        start = lane.start + step * self.batch_size
        stop = min(start + self.batch_size, lane.stop)
        if self.tail != "pad":
            return Batch(start, stop)
        longest = -(-self.total // self.world)  # every lane is this long, or one row shorter
        repeated = min((step + 1) * self.batch_size, longest) - (stop - lane.start)
        if start < stop:
            return Batch(start, stop, repeated)
        last = lane.stop - 1 if len(lane) else min(start, self.total - 1)  # there may be fewer rows than ranks
        return Batch(last, last + 1, repeated - 1, borrowed=True)

    def worker_steps(self, rank: int, worker: int, workers: int) -> range:
        """The steps of `rank` that one of its workers reads: a contiguous block, the first ones a step longer."""
        each, longer = divmod(self.steps(rank), workers)
        first = worker * each + min(worker, longer)
        return range(first, first + each + (worker < longer))

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
        return self.total - self.world * self.steps(0) * self.batch_size if self.tail == "drop" else 0

    @property
    def repeated(self) -> int:
        """Rows that stand in a batch with a weight of 0 (only `pad` repeats any)."""
        return -self.total % self.world if self.tail == "pad" and self.total else 0


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
