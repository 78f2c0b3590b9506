"""Ranks that come together, or do not, as processes of their own: each error on every rank, and no hang."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import namespaces
import pytest
from rank_program import Place, Rank, SumSome, sum_for_ever, train_for_ever

Start = Callable[..., Rank]


@pytest.fixture
def port() -> int:
    """A port that is free, as far as one can tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Starts ranks that sum for ever; ends them after the test."""
    running: list[Rank] = []

    def begin(rank: int, world: int, work: Any = sum_for_ever, **place: Any) -> Rank:
        running.append(Rank(Place(rank, world, port, **place), work))
        return running[-1]

    yield begin
    for rank in running:
        rank.kill()


def test_a_rank_that_does_not_come_is_named_by_all(start: Start) -> None:
    for rank in [start(place, 3, rendezvous_timeout=3.0) for place in (0, 2)]:
        code, message = rank.end()
        assert code == 4
        assert "of 3 ranks these did not sign in in time: 1; those on " in message


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 3), (1, 3), (1, 3)], "two processes were told to be rank 1, one of them on "),
        ([(0, 2), (1, 3)], "was told of [23] ranks, and another one of [23]: give every"),
    ],
)
def test_two_of_one_number_and_two_worlds_stop_everybody(
    start: Start, places: list[tuple[int, int]], message: str
) -> None:
    for rank in [start(place, world) for place, world in places]:
        code, text = rank.end()
        assert code == 2
        assert re.search(message, text)


def test_a_port_in_use(start: Start, port: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        code, message = start(0, 2).end()
    assert code == 4
    assert f"port {port} is in use on " in message


def _others_name(lost: int, ranks: list[Rank], timeout: float) -> None:
    began = time.monotonic()
    for number, rank in enumerate(ranks):
        if number != lost:
            code, message = rank.end()
            assert code == 4
            assert re.match(rf"rank {lost} on \S+ is lost: it .* in \S+, round \d of 4, step \d+", message), message
    assert time.monotonic() - began < timeout + 2  # two seconds for ending processes on a busy machine


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_rank_ends_all_others_and_is_named(start: Start, how: signal.Signals, lost: int) -> None:
    ranks = [start(place, 3, peer_timeout=4.0) for place in range(3)]
    assert [rank.told() for rank in ranks] == ["training"] * 3
    os.kill(ranks[lost].process.pid or 0, how)
    _others_name(lost, ranks, 4.0)


def test_a_rank_lost_while_ddp_trains(start: Start) -> None:
    ranks = [start(place, 3, train_for_ever, peer_timeout=4.0) for place in range(3)]
    assert [rank.told() for rank in ranks] == ["training"] * 3
    os.kill(ranks[1].process.pid or 0, signal.SIGKILL)
    _others_name(1, ranks, 4.0)


@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing())
def test_a_cut_link_ends_everybody(start: Start) -> None:
    with namespaces.hosts(3) as hosts:
        network = [{"address": "10.77.0.1", "network": host.path, "peer_timeout": 4.0} for host in hosts]
        ranks = [start(place, 3, **network[place]) for place in range(3)]
        assert [rank.told() for rank in ranks] == ["training"] * 3
        hosts[1].cut()
        _others_name(1, ranks, 4.0)
        assert ranks[1].end()[0] == 4


@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing())
@pytest.mark.parametrize("name", ["ring", "allreduce", "parameter-server", "parameter-server-sharded"])
def test_the_kernels_counters_agree_with_ours(start: Start, name: str) -> None:
    elements, times = 1_500_000, 3
    with namespaces.hosts(3) as hosts:
        work = SumSome(name, elements, times)
        ranks = [start(place, 3, work, address="10.77.0.1", network=host.path) for place, host in enumerate(hosts)]
        for host, rank in zip(hosts, ranks, strict=True):
            sent, _ = rank.told()
            assert rank.end()[0] == 0
            assert 1.00 <= host.bytes_sent() / sent <= 1.10
