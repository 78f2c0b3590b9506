"""Who leaves: examples worked out by hand."""

from __future__ import annotations

import pytest

from cabrank.data.cache_room import Stored, Uses, victims

OPENED = 100.0


def uses(order: str) -> Uses:
    planned = Uses()
    planned.plan(order)
    return planned


def stored(**used: float) -> dict[str, Stored]:
    return {digest: Stored(10, when) for digest, when in used.items()}


def test_nothing_leaves_while_there_is_room() -> None:
    assert victims(stored(a=1), 0, uses(""), "x", OPENED) == []
    assert victims(stored(a=1), -5, uses("a"), "x", OPENED) == []


def test_the_farthest_next_use_leaves_first() -> None:
    have = stored(a=101, b=102, c=103)
    assert victims(have, 10, uses("xcab"), "x", OPENED) == ["b"]
    assert victims(have, 11, uses("xcab"), "x", OPENED) == ["b", "a"]
    assert victims(have, 30, uses("xcab"), "x", OPENED) == ["b", "a", "c"]


def test_a_newcomer_that_is_needed_last_stays_out() -> None:
    assert victims(stored(a=101, b=102), 10, uses("abx"), "x", OPENED) is None
    assert victims(stored(a=101, b=102), 10, uses("axb"), "x", OPENED) == ["b"]
    assert victims(stored(a=101, b=102), 20, uses("axb"), "x", OPENED) is None  # a would have to leave, too


def test_what_is_needed_no_more_leaves_before_what_is() -> None:
    planned = uses("abx")
    planned.used("a")
    planned.used("b")
    planned.plan("bx")
    assert victims(stored(a=105, b=101), 10, planned, "x", OPENED) == ["a"]


def test_each_use_counts_once() -> None:
    planned = uses("abab" + "x")
    planned.used("a")  # left: b at 1, a at 2
    assert victims(stored(a=101, b=102), 10, planned, "y", OPENED) is None  # y is nobody's
    planned.plan("axbxa")
    planned.used("a")  # next: x at 1, b at 2, a at 4
    assert victims(stored(a=101, b=102), 10, planned, "x", OPENED) == ["a"]


def test_leftovers_of_earlier_runs_leave_first_and_oldest_first() -> None:
    have = stored(a=50, b=40, c=101)
    assert victims(have, 10, uses("xc"), "x", OPENED) == ["b"]
    assert victims(have, 20, uses("xc"), "x", OPENED) == ["b", "a"]
    assert victims(have, 30, uses("xc"), "x", OPENED) == ["b", "a", "c"]


def test_what_another_process_uses_is_left_alone() -> None:
    assert victims(stored(theirs=101), 10, uses("x"), "x", OPENED) is None
    assert victims(stored(theirs=101, mine=101), 10, Uses(), "x", OPENED) == ["mine"]  # no plan: by age, then by name


@pytest.mark.parametrize("newcomer", ["x", "a"])
def test_without_a_plan_the_least_recently_used_leaves(newcomer: str) -> None:
    assert victims(stored(b=120, c=110, d=130), 15, Uses(), newcomer, OPENED) == ["c", "b"]


def test_the_rule_beats_least_recently_used_on_a_cycle() -> None:
    """Room for two, A B C again and again: one of the three is streamed, two are found, each round."""
    room: set[str] = set()
    planned = uses("ABC" * 4)
    hits = 0
    for clock, digest in enumerate("ABC" * 4):
        planned.used(digest)
        if digest in room:
            hits += 1
            continue
        have = {d: Stored(10, OPENED + clock) for d in room}
        leaving = victims(have, 10 * (len(room) + 1 - 2), planned, digest, OPENED)
        if leaving is not None:
            room = (room - set(leaving)) | {digest}
    assert hits == 6  # two of three in each round but the first; least recently used finds none
