"""Who is lost, by the store that all share; and which errors are a peer's."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore

from cabrank.errors import PeerLostError
from cabrank.sync.peers import Peers

HOSTS = ("algo-1", "algo-2", "algo-3", "algo-4")
TIMED_OUT = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation")
CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4711")


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    """Rank 0 of 4, with a store of its own."""
    return Peers(None, 0, 4, HOSTS, timeout=1.0, store=FileStore(str(tmp_path / "store"), 1), step=12)


def test_the_chain_of_who_waited_for_whom_is_followed_to_the_silent_one(peers: Peers) -> None:
    assert peers.store is not None
    peers.store.set("lost/1", "2")
    peers.store.set("lost/2", "3")
    error = peers.lost(1, "reduce-scatter, round 0 of 6", TIMED_OUT)
    assert error.rank == 3
    assert str(error).startswith(
        "rank 3 on algo-4 is lost: it did not answer for 1 s in reduce-scatter, round 0 of 6, step 12 "
        "(rank 0 waited for rank 1, which waited for it); noticed by rank 0 on algo-1."
    )


def test_who_wrote_nothing_is_the_lost_one(peers: Peers) -> None:
    error = peers.lost(1, "all-gather, round 5 of 6", CLOSED)
    assert error.rank == 1
    assert "rank 1 on algo-2 is lost: it closed the connection in all-gather, round 5 of 6, step 12; noticed" in str(
        error
    )


def test_a_circle_of_waiting_ranks_blames_the_neighbour(peers: Peers) -> None:
    assert peers.store is not None
    for rank, waited_for in (("1", "2"), ("2", "3"), ("3", "0")):
        peers.store.set(f"lost/{rank}", waited_for)
    assert peers.lost(1, "all_reduce", TIMED_OUT).rank == 1


def test_a_verdict_that_was_pushed_stands(peers: Peers) -> None:
    peers.verdict.append(2)
    assert peers.lost(1, "all_reduce", CLOSED).rank == 2


def test_the_rank_that_the_others_gave_up_is_told_so(peers: Peers) -> None:
    peers.verdict.append(0)
    error = peers.lost(1, "all_reduce", CLOSED)
    assert str(error).startswith("the others gave up rank 0 on algo-1, this one, as lost: it stood still")


def test_only_the_backends_errors_become_lost_peers(peers: Peers) -> None:
    with (
        pytest.raises(PeerLostError, match=r"rank 1 on algo-2 is lost.* in DDP's start") as caught,
        peers.guard("DDP's start"),
    ):
        raise CLOSED
    assert caught.value.__cause__ is CLOSED
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"), peers.guard("DDP's start"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
