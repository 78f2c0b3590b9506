"""Shares and the proof over a grid, at the sizes that are hard, and on plans that are wrong on purpose."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabrank.data.coverage import shares, verify
from cabrank.data.shards import Batch, Leg, Plan, Tail
from cabrank.errors import CabrankError

TAILS: tuple[Tail, ...] = ("drop", "pad", "uneven")


def test_the_grid_up_to_64_ranks_of_8_workers() -> None:
    for world, workers, size, tail in product((1, 2, 5, 17, 64), (1, 3, 8), (1, 13, 1000), TAILS):
        for rows in ((997,), (0, 311, 1, 0, 512), (7,) * 40, (1,)):
            plan = Plan(rows, size, world, tail)
            assert verify(plan, workers) == sum(plan.steps(rank) for rank in range(world))


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    world=st.integers(1, 64),
    workers=st.integers(1, 8),
    size=st.integers(1, 400),
    tail=st.sampled_from(TAILS),
    seed=st.none() | st.integers(0, 5),
    steps=st.integers(0, 5),
)
def test_two_hundred_random_plans(
    rows: list[int], world: int, workers: int, size: int, tail: Tail, seed: int | None, steps: int
) -> None:
    plan = Plan(tuple(rows), size, world, tail, seed, legs=(Leg(3, 2, 5, steps),))
    verify(plan, workers)
    found = shares(plan, [10] * len(rows))
    assert sum(share.rows for share in found) + plan.left_out == plan.todo
    assert sum(share.repeated for share in found) == plan.repeated
    assert all(share.bytes == 10 * share.parts for share in found)


def test_ten_billion_rows_in_a_hundred_thousand_parts_take_no_store_and_little_time() -> None:
    plan = Plan((100_000,) * 100_000, 2**16, 64, seed=3)
    assert verify(plan, 8) == 64 * -(-(10**10 // 64) // 2**16)
    found = shares(plan, [6_000_000] * 100_000)
    assert {share.rows for share in found} == {10**10 // 64}
    assert max(share.parts for share in found) <= 100_000 // 64 + 2


def test_shares_by_hand() -> None:
    [first, second] = shares(Plan((4, 6, 3), 4, 2), [40, 60, 30])
    assert (first.rows, first.repeated, first.steps, first.parts, first.bytes) == (6, 1, 2, 2, 100)
    assert (second.rows, second.repeated, second.steps, second.parts, second.bytes) == (7, 0, 2, 2, 90)
    assert (first.first_part, first.last_part, second.first_part, second.last_part) == (0, 1, 1, 2)


class Gap(Plan):
    def batch(self, rank: int, step: int) -> Batch:
        batch = super().batch(rank, step)
        return Batch(batch.start + 1, batch.stop) if (rank, step) == (1, 1) else batch


class Overlap(Plan):
    def lane(self, rank: int) -> range:
        lane = super().lane(rank)
        return range(lane.start - 1, lane.stop) if rank == 1 else lane


class Fat(Plan):
    def batch(self, rank: int, step: int) -> Batch:
        batch = super().batch(rank, step)
        return Batch(batch.start, batch.stop, 100)


class Lost(Plan):
    def steps(self, rank: int) -> int:
        return super().steps(rank) - (rank == 1)


@pytest.mark.parametrize("wrong", [Gap, Overlap, Fat, Lost])
def test_a_wrong_plan_is_found(wrong: type[Plan]) -> None:
    with pytest.raises(CabrankError, match="the plan is wrong") as caught:
        verify(wrong((100,), 10, 2, "uneven"))
    assert caught.value.exit_code == 70
