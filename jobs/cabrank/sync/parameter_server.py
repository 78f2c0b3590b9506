"""The parameter server: one rank receives every gradient, sums, and sends the sum back.

             ┌──────────┐       S bytes of gradient, N ranks:
    rank 1 ⇄ │          │       a worker sends S and receives S;
    rank 2 ⇄ │  rank 0  │       the server sends (N - 1)·S and receives (N - 1)·S,
    rank 3 ⇄ │          │       so its link is the limit, and the more ranks, the more so.
             └──────────┘

Sharded, every rank serves some of the buckets (bucket b's server is rank b mod N), which spreads the load; with fewer
buckets than ranks some serve none. The server adds in the order of ranks whoever it is, so that both give the same sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cabrank.sync.base import Strategy
from cabrank.sync.peers import Parcel, Peers

PIECE = 2**20  # bytes: what a server keeps of each worker at a time
_PHASE = "the parameter server's exchange"


class ParameterServer(Strategy):
    """Sums buckets at one rank, rank 0, or, where `sharded`, at a rank for each bucket."""

    name = "parameter-server"

    def __init__(self, peers: Peers, wire_dtype: torch.dtype | None = None, *, sharded: bool = False) -> None:
        super().__init__(peers, wire_dtype)
        self._sharded = sharded

    def server(self, index: int) -> int:
        """The rank that serves bucket `index`."""
        return index % self.peers.world if self._sharded else 0

    def _sum(self, work: Tensor, wire: Tensor, index: int) -> None:
        server = self.server(index)
        length = max(PIECE // work.element_size(), 1)
        places = [slice(at, min(at + length, len(work))) for at in range(0, len(work), length)]
        traffic = self.account.bucket(index)
        if self.peers.rank == server:
            self._serve_all(work, wire, places)
            traffic.sent += (self.peers.world - 1) * wire.nbytes
            traffic.received += (self.peers.world - 1) * wire.nbytes
        else:
            self._ask(work, wire, places, server)
            traffic.sent += wire.nbytes
            traffic.received += wire.nbytes

    def _serve_all(self, work: Tensor, wire: Tensor, places: list[slice]) -> None:
        """Takes in one piece of every worker while the sum of the piece before goes out."""
        peers, length = self.peers, places[0].stop
        workers = [rank for rank in range(peers.world) if rank != peers.rank]
        inbox = self._scratch("inbox", wire.dtype, len(workers) * length, wire.device).view(-1, length)
        total = self._scratch("total", work.dtype, length, work.device)
        sums: list[Parcel] = []
        for place in places:
            n = place.stop - place.start
            arrived = [(box[:n], rank) for box, rank in zip(inbox, workers, strict=True)]
            peers.exchange(sums, arrived, _PHASE)
            _sum_in_order(total[:n], sorted([*arrived, (work[place], peers.rank)], key=lambda parcel: parcel[1]))
            wire[place] = total[:n]
            work[place] = wire[place]  # rounded, where the wire rounds: all keep what all receive
            sums = [(wire[place], rank) for rank in workers]
        peers.exchange(sums, [], _PHASE)

    def _ask(self, work: Tensor, wire: Tensor, places: list[slice], server: int) -> None:
        before: list[Parcel] = []
        for place in places:
            self.peers.exchange([(wire[place], server)], before, _PHASE)
            before = [(wire[place], server)]
        self.peers.exchange([], before, _PHASE)
        if wire is not work:
            work.copy_(wire)


def _sum_in_order(total: Tensor, parcels: list[Parcel]) -> None:
    first, *others = parcels
    total.copy_(first[0])
    for piece, _ in others:
        total += piece
