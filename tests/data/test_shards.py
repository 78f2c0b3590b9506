"""The plan's arithmetic, against counting by hand over every row."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabrank.data.shards import Leg, Plan, Span, Tail, make_plan
from cabrank.errors import ConfigError, NoDataError

TAILS: tuple[Tail, ...] = ("drop", "pad", "uneven")


def rows_read(
    plan: Plan, workers: int = 1
) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]], list[list[int]]]:
    """(rows with a weight of 1, rows with a weight of 0, rows of each batch by rank), as (part, row)."""
    owned: Counter[tuple[int, int]] = Counter()
    weightless: Counter[tuple[int, int]] = Counter()
    sizes: list[list[int]] = []
    for rank in range(plan.world):
        sizes.append([])
        for worker in range(workers):
            for step in plan.worker_steps(rank, worker, workers):
                batch = plan.batch(rank, step)
                rows = [(s.part, r) for s in plan.spans(batch.start, batch.stop) for r in range(s.start, s.stop)]
                assert len(rows) == batch.stop - batch.start
                (weightless if batch.borrowed else owned).update(rows)
                if batch.repeated:
                    weightless[rows[-1]] += batch.repeated
                sizes[-1].append(batch.rows)
    return owned, weightless, sizes


def check(rows: list[int], world: int, workers: int, batch_size: int, tail: Tail, seed: int | None) -> None:
    """Everything that the module's docstring promises."""
    plan = Plan(tuple(rows), batch_size, world, tail, seed)
    everything = {(part, row) for part, count in enumerate(rows) for row in range(count)}
    owned, weightless, sizes = rows_read(plan, workers)
    assert max(owned.values(), default=1) == 1
    assert all(size <= batch_size for rank in sizes for size in rank)
    assert sum(weightless.values()) == plan.repeated
    assert [len(rank) for rank in sizes] == [plan.steps(rank) for rank in range(world)]
    if tail == "drop":
        assert len(everything) - len(owned) == plan.left_out < world * batch_size
        assert all(size == batch_size for rank in sizes for size in rank)
    else:
        assert set(owned) == everything
    if tail != "uneven" and everything:
        assert len({tuple(sorted(rank)) for rank in sizes}) == 1  # equal steps, of equal rows, on every rank
    if tail == "uneven":
        assert max(map(len, sizes)) - min(map(len, sizes)) <= 1


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("rows", [[10], [1, 0, 3], [0, 0, 7, 0], [5] * 12, [1], [101, 2, 33, 0, 64]])
def test_each_row_once_and_equal_steps_over_a_grid(rows: list[int], tail: Tail) -> None:
    for world, workers, batch_size in product((1, 2, 3, 8, 64), (1, 2, 5, 8), (1, 2, 3, 7, 1000)):
        check(rows, world, workers, batch_size, tail, None)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    world=st.integers(1, 64),
    workers=st.integers(1, 8),
    batch_size=st.integers(1, 50),
    tail=st.sampled_from(TAILS),
    seed=st.none() | st.integers(0, 9),
)
def test_each_row_once_and_equal_steps(
    rows: list[int], world: int, workers: int, batch_size: int, tail: Tail, seed: int | None
) -> None:
    check(rows, world, workers, batch_size, tail, seed)


def test_the_worked_example_of_the_docstring() -> None:
    lanes = [list(Plan((4, 6), 2, 3).lane(rank)) for rank in range(3)]
    assert lanes == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [[Plan((4, 6), 2, 3, tail).steps(rank) for rank in range(3)] for tail in TAILS] == [
        [1, 1, 1],
        [2, 2, 2],
        [2, 2, 2],
    ]
    assert Plan((4, 6), 2, 3, "drop").left_out == 4
    assert Plan((4, 6), 2, 3, "pad").repeated == 2
    assert list(Plan((4, 6), 2, 3).spans(3, 6)) == [Span(0, 3, 4), Span(1, 0, 2)]


def test_workers_change_neither_the_batches_nor_their_rows() -> None:
    plan = Plan((100, 7, 0, 55), 13, 3, "pad")
    alone = [plan.batch(1, step) for step in range(plan.steps(1))]
    for workers in (2, 3, 5, 9):
        dealt = [plan.batch(1, step) for w in range(workers) for step in plan.worker_steps(1, w, workers)]
        assert dealt == alone
        lengths = [len(plan.worker_steps(1, w, workers)) for w in range(workers)]
        assert lengths == sorted(lengths, reverse=True)  # or a loader that takes turns would find a gap
        assert lengths[0] - lengths[-1] <= 1


def test_a_rank_reads_about_its_share_of_the_parts() -> None:
    plan = Plan((1000,) * 1000, 256, 8)
    touched = [len(list(plan.spans(plan.lane(r).start, plan.lane(r).stop))) for r in range(8)]
    assert touched == [125] * 8


def test_a_seed_orders_the_parts_the_same_everywhere_and_differently_each_epoch() -> None:
    def order(seed: int, epoch: int, world: int = 1) -> list[int]:
        return list(map(int, Plan((3,) * 50, 2, world, "pad", seed, epoch).order))

    assert sorted(order(7, 0)) == list(range(50))
    assert order(7, 0) == order(7, 0, world=4)
    assert order(7, 0) != order(7, 1)
    assert order(7, 0) != order(8, 0)
    assert Plan((3,) * 5, 2).order.tolist() == [0, 1, 2, 3, 4]


def test_ten_billion_rows_in_a_hundred_thousand_parts() -> None:
    plan = Plan((100_000,) * 100_000, 2**20, 64)
    assert plan.total == 10**10
    assert plan.steps(63) == -(-(10**10) // 64 // 2**20)
    last = plan.batch(63, plan.steps(63) - 1)
    assert last.stop == 10**10
    assert list(plan.spans(10**10 - 1, 10**10)) == [Span(99_999, 99_999, 100_000)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": -5}, "batch_size is -5"),
        ({"world": 0}, "world is 0"),
        ({"tail": "cut"}, "tail is 'cut': it must be one of drop, pad, uneven"),
        ({"rows": (3, -1)}, "a part has -1 rows"),
    ],
)
def test_arguments_that_cannot_work(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"rows": (3, 4), "batch_size": 2, **change}
    with pytest.raises(ConfigError, match=words):
        Plan(**arguments)  # type: ignore[arg-type]


def test_a_rank_outside_the_world() -> None:
    with pytest.raises(ConfigError, match="rank is 3: with 3 ranks it must be 0 to 2"):
        Plan((9,), 1, 3).lane(3)


def test_no_rows_and_no_step() -> None:
    with pytest.raises(NoDataError, match="the 2 parts hold no rows"):
        make_plan([0, 0], batch_size=1)
    with pytest.raises(ConfigError, match=r"batch_size is 100 on 2 ranks.*\(30 rows\).*make it 15 or less"):
        make_plan([10, 20], batch_size=100, world=2, tail="drop")
    assert make_plan([10, 20], batch_size=100, world=2).steps(0) == 1


LEG = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 12), st.integers(0, 12))


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    legs=st.lists(LEG, max_size=4),
    tail=st.sampled_from(TAILS),
    last=LEG,
)
def test_resumes_read_exactly_the_rows_that_were_left(
    rows: list[int], legs: list[tuple[int, int, int, int]], tail: Tail, last: tuple[int, int, int, int]
) -> None:
    """Each leg is played out row by row, and what it read must never come again, and nothing else be missing."""
    everything = Counter(range(sum(rows)))
    read: Counter[int] = Counter()
    done: tuple[Leg, ...] = ()
    for world, workers, batch_size, steps in legs:
        plan = Plan(tuple(rows), batch_size, world, tail, legs=done)
        for rank in range(world):
            queues = [list(plan.worker_steps(rank, worker, workers)) for worker in range(workers)]
            for turn in range(min(steps, plan.steps(rank))):
                batch = plan.batch(rank, queues[turn % workers].pop(0))  # as a DataLoader takes them
                if not batch.borrowed:
                    read.update(row for places in plan.ranges(batch.start, batch.stop) for row in places)
        done = (*done, Leg(world, workers, batch_size, steps))
    assert max(read.values(), default=1) == 1
    world, workers, batch_size, _ = last
    plan = Plan(tuple(rows), batch_size, world, tail, legs=done)
    assert Counter(row for places in plan.unread for row in places) == everything - read
    rest: Counter[int] = Counter()
    for rank in range(world):
        for step in range(plan.steps(rank)):
            batch = plan.batch(rank, step)
            if not batch.borrowed:
                rest.update(row for places in plan.ranges(batch.start, batch.stop) for row in places)
    if tail != "drop":
        assert rest == everything - read
    else:
        assert sum(rest.values()) + plan.left_out == plan.todo
        assert rest <= everything - read


def test_a_resume_worked_by_hand() -> None:
    # 12 rows on 2 ranks, 2 rows a batch, broken off after 1 step: 0 1 and 6 7 are read
    plan = Plan((12,), 3, 1, legs=(Leg(2, 1, 2, 1),))
    assert plan.unread == (range(2, 6), range(8, 12))
    assert plan.todo == 8
    assert [plan.ranges(b.start, b.stop) for b in (plan.batch(0, step) for step in range(plan.steps(0)))] == [
        [range(2, 5)],
        [range(5, 6), range(8, 10)],
        [range(10, 12)],
    ]
