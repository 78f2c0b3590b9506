"""What a plan comes to: each rank's share, and the proof that together they are every row once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from cabrank.data.shards import Plan
from cabrank.errors import CabrankError


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of an epoch."""

    rank: int
    steps: int
    rows: int
    """Its own, each once."""
    repeated: int
    """Rows that stand in its batches with a weight of 0."""
    parts: int
    """Parts that it opens."""
    bytes: int
    """Of these parts, as they lie in the store."""
    first_part: int
    """Place in the listing of the part that it begins with; -1 for a rank that reads nothing."""
    last_part: int

    def facts(self) -> dict[str, int]:
        """As plain numbers."""
        return asdict(self)


def shares(plan: Plan, sizes: Sequence[int]) -> list[Share]:
    """Each rank's share; `sizes[i]`: bytes of the part at place i of the listing."""
    return [_share(plan, rank, sizes) for rank in range(plan.world)]


def _share(plan: Plan, rank: int, sizes: Sequence[int]) -> Share:
    steps = plan.steps(rank)
    if not steps:
        return Share(rank, 0, 0, 0, 0, 0, -1, -1)
    start, last = plan.batch(rank, 0).start, plan.batch(rank, steps - 1)
    touched = [span.part for rows in plan.ranges(start, last.stop) for span in plan.spans(rows.start, rows.stop)]
    own = min(len(plan.lane(rank)), steps * plan.batch_size)
    repeated = last.rows - last.owned if plan.tail == "pad" else 0
    size = sum(sizes[part] for part in set(touched))
    return Share(rank, steps, own, repeated, len(set(touched)), size, touched[0], touched[-1])


def verify(plan: Plan, workers: int = 1) -> int:
    """Goes through every batch of every worker of every rank, and returns how many there are.

    `CabrankError`, since it is our fault, unless the batches' own rows follow one another without a gap or an overlap
    from the first unread row to the last (but for what `drop` leaves out), each batch has at most `batch_size` rows,
    the parts hold them, and, but for `uneven`, every rank has equally many batches.
    """
    batches, read, steps = 0, 0, set()
    for rank in range(plan.world):
        lane = plan.lane(rank)
        if lane.start != (plan.lane(rank - 1).stop if rank else 0):
            raise _fault(plan, f"rank {rank} begins at row {lane.start}")
        place, seen = lane.start, 0
        for worker in range(workers):
            for step in plan.worker_steps(rank, worker, workers):
                batch = plan.batch(rank, step)
                if (batch.owned and batch.start != place) or not 0 < batch.rows <= plan.batch_size:
                    raise _fault(plan, f"rank {rank}, step {step} reads {batch} behind row {place}")
                place, seen = place + batch.owned, seen + 1
        left = lane.stop - place
        if left and plan.tail != "drop":
            raise _fault(plan, f"rank {rank} leaves out {left} rows")
        covered = sum(
            len(span) for rows in plan.ranges(lane.start, place) for span in plan.spans(rows.start, rows.stop)
        )
        if covered != place - lane.start or seen != plan.steps(rank):
            raise _fault(plan, f"rank {rank} reads {covered} rows of parts in {seen} steps")
        batches, read = batches + seen, read + covered
        steps.add(seen)
    if read + plan.left_out != plan.todo or (len(steps) > 1 and plan.tail != "uneven"):
        raise _fault(plan, f"{read} rows are read in {sorted(steps)} steps a rank")
    return batches


def _fault(plan: Plan, what: str) -> CabrankError:
    facts = f"{plan.todo} rows, {plan.world} ranks, batch size {plan.batch_size}, tail {plan.tail}"
    return CabrankError(f"the plan is wrong ({facts}): {what}; please report this")
