"""The ring: every rank sends to one neighbour and receives from the other, and no rank is busier than another.

Four nodes, one gradient of four segments (the numbers are those of four shards of a linear regression). Each cuts its
gradient into as many segments as there are nodes and passes one on, round after round, in the same direction:

      ┌─► node 0 ─► node 1 ─► node 2 ─► node 3 ─┐
      └─────────────────────────────────────────┘

              segment 0   segment 1   segment 2   segment 3
    node 0     -0.1776    -10.4762    -19.9037    -31.2003
    node 1      0.0823    -10.3284    -20.6617    -30.2549
    node 2     -0.1322    -10.9773    -20.4698    -30.2835
    node 3      0.1597    -10.4902    -19.8841    -29.5041

**Reduce-scatter**, N - 1 rounds: add what arrives to your own, and pass that on next. Segment 0 starts at node 1:

    round 0    1 sends  0.0823          2 adds it:  -0.1322 + 0.0823 = -0.0499
    round 1    2 sends -0.0499          3 adds it:   0.1597 - 0.0499 =  0.1098
    round 2    3 sends  0.1098          0 adds it:  -0.1776 + 0.1098 = -0.0679

and the other three do the same at the same time, each one node further on. Now node i holds all of segment i:

    node 0     -0.0679    -31.9437    -39.7879    -31.2003
    node 1      0.0823    -42.2722    -60.4496    -61.4552
    node 2     -0.0499    -10.9773    -80.9194    -91.7387
    node 3      0.1098    -21.4675    -19.8841   -121.2428

**All-gather**, N - 1 more rounds: overwrite your own with what arrives. At the end all hold the same:

    all        -0.0679    -42.2722    -80.9194   -121.2428

**Index rule.** One for all 2·(N - 1) rounds. Node i, sending in direction d (+1 above), in round t

    sends   segment (i - d·(t + 1)) mod N   to   node i + d
    receives segment (i - d·(t + 2)) mod N  from node i - d        adds it while t < N - 1, overwrites after

so what arrives in one round leaves in the next.

**Cost.** S bytes of gradient: each node sends and receives 2·S·(N - 1)/N in 2·(N - 1) rounds, whatever N is. (To the
byte: 2·S less the segments i and i + d, which it does not send once.)

gloo's `all_reduce` turns the other way, d = -1, and cuts where its own pieces end; so does `GLOO`, the default, which
makes the two bit for bit equal: the order of a floating-point sum is part of its result. `TEXTBOOK` is drawn above.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cabrank.sync.base import Strategy, Traffic
from cabrank.sync.peers import Peers

if TYPE_CHECKING:
    from torch.distributed import Work

GLOO_PIECE = 2**20  # bytes: the longest piece that gloo sends at once
SHORTEST_PIECE, LONGEST_PIECE = 2**21, 2**22  # bytes of ours: each wakes a thread on both ends, so not many of them;
PIECES = 4  # a segment, between those two: the last sum has nothing to hide behind, so not too few
AHEAD = 3  # receives posted before they are needed


@dataclass(frozen=True, slots=True)
class Circle:
    """Which way a ring turns, and where it `cut`s a buffer of (elements, bytes an element, ranks) into segments: at
    ranks + 1 ascending bounds, from 0 to elements."""

    direction: int
    cut: Callable[[int, int, int], list[int]]


class Round(NamedTuple):
    """What one rank does in one round: the numbers of the segments, and whether the one that arrives is added."""

    send: int
    receive: int
    add: bool


def rounds(rank: int, world: int, direction: int) -> list[Round]:
    """The index rule: all 2·(world - 1) rounds of one rank."""
    return [
        Round((rank - direction * (t + 1)) % world, (rank - direction * (t + 2)) % world, t < world - 1)
        for t in range(2 * (world - 1))
    ]


def bytes_sent(elements: int, itemsize: int, rank: int, world: int, circle: Circle) -> int:
    """What `rank` sends for one buffer, to the byte: 2·S less the two segments that it does not send once."""
    if world == 1:
        return 0
    bounds = circle.cut(elements, itemsize, world)
    unsent = sum(bounds[i + 1] - bounds[i] for i in (rank, (rank + circle.direction) % world))
    return (2 * elements - unsent) * itemsize


def even_cut(elements: int, itemsize: int, world: int) -> list[int]:
    """Segments of equal length, within one element."""
    del itemsize
    return [elements * i // world for i in range(world + 1)]


def gloo_cut(elements: int, itemsize: int, world: int) -> list[int]:
    """Where gloo's all_reduce cuts: into a multiple of `world` pieces, at least two a rank, at most `GLOO_PIECE` long;
    a rank's segment is its run of pieces. The last ranks' may be short, or empty."""
    total = elements * itemsize
    longest = max(GLOO_PIECE // itemsize, 1) * itemsize
    pieces = _up(max(-(-total // longest), 2 * world), world)
    piece = _up(-(-total // pieces), itemsize) // itemsize
    segment = pieces // world * piece
    return [min(segment * i, elements) for i in range(world + 1)]


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


GLOO = Circle(-1, gloo_cut)
TEXTBOOK = Circle(+1, even_cut)


class Ring(Strategy):
    """Sums buckets around a ring, in pieces of `piece_bytes`, or of what suits the segment. `by_rounds` sends a whole
    segment a round, as textbooks do and as NCCL, which cuts by itself, wants it."""

    name = "ring"

    def __init__(
        self,
        peers: Peers,
        wire_dtype: torch.dtype | None = None,
        *,
        circle: Circle = GLOO,
        piece_bytes: int | None = None,
        by_rounds: bool = False,
    ) -> None:
        super().__init__(peers, wire_dtype)
        self._circle = circle
        self._piece_bytes = piece_bytes
        self._by_rounds = by_rounds or peers.on_nccl
        self._to = (peers.rank + circle.direction) % peers.world
        self._sender = (peers.rank - circle.direction) % peers.world
        self._rounds = rounds(peers.rank, peers.world, circle.direction)

    def _sum(self, work: Tensor, wire: Tensor, index: int) -> None:
        traffic = self.account.bucket(index)
        bounds = self._circle.cut(len(work), work.element_size(), self.peers.world)
        segments = [slice(*pair) for pair in pairwise(bounds)]
        if self._by_rounds:
            self._sum_by_rounds(work, wire, segments, traffic)
        else:
            self._sum_in_pieces(work, wire, segments, traffic)

    def _sum_by_rounds(self, work: Tensor, wire: Tensor, segments: list[slice], traffic: Traffic) -> None:
        """The textbook: one segment out and one in, then add, then the next round."""
        longest = max(s.stop - s.start for s in segments)
        scratch = self._scratch("round", wire.dtype, longest, wire.device)
        for t, (send, receive, add) in enumerate(self._rounds):
            leaving, place = wire[segments[send]], segments[receive]
            arriving = scratch[: place.stop - place.start] if add else wire[place]
            self.peers.exchange([(leaving, self._to)], [(arriving, self._sender)], self._phase(t))
            traffic.sent += leaving.nbytes
            traffic.received += arriving.nbytes
            self._take(work, wire, place, arriving if add else None, last=t == self.peers.world - 2)

    def _sum_in_pieces(self, work: Tensor, wire: Tensor, segments: list[slice], traffic: Traffic) -> None:
        """The same rounds, run together: each segment travels in pieces, and a piece leaves as soon as it was added,
        while the next ones arrive. Both neighbours cut alike, so pieces arrive in the order in which they were sent."""
        length = self._piece(max(s.stop - s.start for s in segments), work.element_size())
        arrivals = deque(
            (t, place) for t, r in enumerate(self._rounds) for place in _pieces(segments[r.receive], length)
        )
        slots = deque(self._scratch("pieces", wire.dtype, AHEAD * length, wire.device).view(AHEAD, length))
        posted: deque[tuple[int, slice, Tensor | None, Work]] = deque()
        sending: list[tuple[int, Work]] = []

        def post() -> None:
            t, place = arrivals.popleft()
            # what is only to be stored needs no slot: a final value arrives after all that was to leave from its place
            slot = slots[0][: place.stop - place.start] if self._rounds[t].add else None
            slots.rotate(-1)
            target = wire[place] if slot is None else slot
            posted.append((t, place, slot, self.peers.receive(target, self._sender, self._phase(t))))
            traffic.received += target.nbytes

        def send(t: int, place: slice) -> None:
            leaving = wire[place]
            sending.append((t, self.peers.send(leaving, self._to, self._phase(t))))
            traffic.sent += leaving.nbytes

        for _ in range(min(AHEAD, len(arrivals))):
            post()
        for place in _pieces(segments[self._rounds[0].send], length):
            send(0, place)
        while posted:
            t, place, slot, handle = posted.popleft()
            self.peers.wait(handle, self._sender, self._phase(t))
            self._take(work, wire, place, slot, last=t == self.peers.world - 2)
            if t + 1 < len(self._rounds):
                send(t + 1, place)
            if arrivals:
                post()
        for t, handle in sending:
            self.peers.wait(handle, self._to, self._phase(t))

    def _piece(self, segment: int, itemsize: int) -> int:
        """Elements that travel at once, of the longest segment's."""
        suitable = min(max(segment * itemsize // PIECES, SHORTEST_PIECE), LONGEST_PIECE)
        return max((self._piece_bytes or suitable) // itemsize, 1)

    def _take(self, work: Tensor, wire: Tensor, place: slice, arrived: Tensor | None, *, last: bool) -> None:
        """Adds what arrived, or, when it is None, takes what arrived in its place. `last`: the sum is whole now."""
        if arrived is not None:
            work[place] += arrived
            if wire is not work:
                wire[place] = work[place]  # rounds
        if wire is not work and (arrived is None or last):
            work[place] = wire[place]  # all keep what all can receive

    def _phase(self, t: int) -> str:
        name = "reduce-scatter" if self._rounds[t].add else "all-gather"
        return f"{name}, round {t} of {len(self._rounds)}"


def _pieces(segment: slice, length: int) -> Iterator[slice]:
    """`segment` in pieces of `length` elements; none where it is empty."""
    return (slice(at, min(at + length, segment.stop)) for at in range(segment.start, segment.stop, length))
