"""The ring beside gloo's all_reduce, bit for bit, beside Python's integers, and beside the reference's tables."""

from __future__ import annotations

import crew_tasks
import pytest
import torch
from crew import Crew
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cabrank.sync.ring import GLOO, TEXTBOOK, bytes_sent, gloo_cut, rounds

SIZES = [0, 1, 2, 3, 5, 8, 17, 1000, 65_537, 1_300_001]
AFTER_REDUCE_SCATTER = [
    [-0.0679, -31.9437, -39.7879, -31.2003],
    [0.0823, -42.2722, -60.4496, -61.4552],
    [-0.0499, -10.9773, -80.9194, -91.7387],
    [0.1098, -21.4675, -19.8841, -121.2428],
]
AFTER_ALL_GATHER = [[-0.0679, -42.2722, -80.9194, -121.2428]] * 4


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equals_gloo_bit_for_bit(crew: Crew, n: int) -> None:
    assert crew.run(crew_tasks.compare_with_gloo, n, SIZES, ranks=n) == [[]] * n


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 4),
    length=st.integers(0, 700),
    piece_bytes=st.sampled_from([None, 1, 24, 1000, 2**20]),
    textbook=st.booleans(),
)
def test_integers_of_any_length_are_exact_and_cost_what_the_closed_form_says(
    crew: Crew, n: int, length: int, piece_bytes: int | None, textbook: bool
) -> None:
    answers = crew.run(crew_tasks.sum_integers, n, length, piece_bytes, textbook, ranks=n)
    own = [crew_tasks.numbers(length, torch.int64, 10 * length + rank).tolist() for rank in range(n)]
    exact = [(sum(column) + 2**63) % 2**64 - 2**63 for column in zip(*own, strict=True)]
    assert [summed for _, summed in answers] == [exact] * n
    if length % n == 0 and textbook:  # equal segments
        assert [sent for sent, _ in answers] == [2 * 8 * length * (n - 1) // n] * n
    assert sum(sent for sent, _ in answers) == 2 * 8 * length * (n - 1)


@pytest.mark.parametrize("piece_bytes", [None, 2**20])
def test_r5_the_two_tables(crew: Crew, piece_bytes: int | None) -> None:
    assert crew.run(crew_tasks.reduce_reference, 3, piece_bytes) == AFTER_REDUCE_SCATTER
    assert crew.run(crew_tasks.reduce_reference, 6, piece_bytes) == AFTER_ALL_GATHER


def test_r6_training_on_the_ring(crew: Crew) -> None:
    assert crew.run(crew_tasks.regress, 1000) == [[1.0, 2.0, 3.0, 4.0]] * 4


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_what_a_node_sends_is_what_its_neighbour_receives_and_was_received_the_round_before(
    world: int, direction: int
) -> None:
    plans = [rounds(rank, world, direction) for rank in range(world)]
    for rank, plan in enumerate(plans):
        neighbour = plans[(rank + direction) % world]
        assert len(plan) == 2 * (world - 1)
        assert [r.send for r in plan] == [r.receive for r in neighbour]
        assert [r.send for r in plan[1:]] == [r.receive for r in plan[:-1]]
        assert plan[world - 2].receive == rank  # its own segment is whole first
        assert [r.add for r in plan] == [True] * (world - 1) + [False] * (world - 1)


@pytest.mark.parametrize(
    ("elements", "itemsize", "world", "bounds"),
    [
        (4, 4, 4, [0, 2, 4, 4, 4]),  # at least two pieces a rank, so that the last two get none
        (0, 8, 3, [0, 0, 0, 0]),
        (2**20, 4, 2, [0, 2**19, 2**20]),
        (2**20 + 1, 4, 3, [0, 349526, 699052, 1048577]),
    ],
)
def test_cuts_where_gloo_cuts(elements: int, itemsize: int, world: int, bounds: list[int]) -> None:
    assert gloo_cut(elements, itemsize, world) == bounds


def test_r11_the_cost_does_not_grow_with_the_ring() -> None:
    for world in (2, 4, 64):
        assert bytes_sent(64 * 1000, 4, 1, world, TEXTBOOK) == 2 * 64 * 1000 * 4 * (world - 1) // world
    assert bytes_sent(1000, 4, 0, 1, GLOO) == 0
