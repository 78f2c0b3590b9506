"""The word that ranks exchange before each step: packed, summed, concluded alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cabrank.errors import CabrankError, ConfigError, DesyncError, DivergedError
from cabrank.sync.agreement import Agreed, Agreement, Word, conclude, digest, pack, unpack
from cabrank.sync.peers import alone

PLAN = digest("3f2a")
WORD = Word(rows=4096, has_data=True, stop=False, finite=True, step=17, plan=PLAN)
HOSTS = ("algo-1", "algo-2", "algo-3")

words = st.builds(
    Word,
    rows=st.integers(0, 2**40),
    has_data=st.booleans(),
    stop=st.booleans(),
    finite=st.booleans(),
    step=st.integers(0, 2**40),
    plan=st.text().map(digest),
)


@given(st.lists(words, min_size=1, max_size=5))
def test_the_sum_of_what_each_packs_is_what_all_said(said: list[Word]) -> None:
    tables = [pack(word, rank, len(said)) for rank, word in enumerate(said)]
    assert unpack(torch.stack(tables).sum(0)) == said
    assert tables[0].nbytes == 48 * len(said)


def test_rows_add_up_and_one_rank_stops_all() -> None:
    said = [WORD, WORD._replace(stop=True), WORD._replace(rows=811)]
    assert conclude(said, HOSTS) == Agreed(rows=9003, goes_on=True, stoppers=(1,))
    done = [word._replace(rows=0, has_data=False, stop=False) for word in said]
    assert conclude(done, HOSTS) == Agreed(rows=0, goes_on=False, stoppers=())
    assert conclude([*done[:2], WORD], HOSTS).goes_on


@pytest.mark.parametrize(
    ("changed", "error", "code", "message"),
    [
        ({"plan": digest("3f2b")}, ConfigError, 2, "rank 0 (algo-1) and rank 2 (algo-3) have different plans"),
        ({"step": 18}, DesyncError, 4, "rank 0 (algo-1) is at step 17 and rank 2 (algo-3) at step 18"),
        ({"finite": False}, DivergedError, 3, "diverged on rank 2 (algo-3), in the step before step 17"),
    ],
)
def test_what_they_cannot_agree_on_names_the_rank(
    changed: dict[str, Any], error: type[CabrankError], code: int, message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        conclude([WORD, WORD, WORD._replace(**changed)], HOSTS)
    assert caught.value.exit_code == code


def test_a_world_of_one_agrees_with_itself() -> None:
    agreement = Agreement(alone())
    assert agreement.reach(WORD) == Agreed(rows=4096, goes_on=True, stoppers=())
    agreement.close()
