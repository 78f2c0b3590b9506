"""The backend's own all_reduce: NCCL between GPUs, gloo between CPUs. What production uses, and the ring's oracle."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from cabrank.errors import ConfigError
from cabrank.sync.base import Strategy
from cabrank.sync.peers import Peers
from cabrank.sync.ring import GLOO, bytes_sent

_NO_ROUNDING = (None, torch.float32, torch.float64)


class AllReduce(Strategy):
    """Sums buckets by `torch.distributed.all_reduce`. Its bytes are gloo's, which turns a ring of its own; NCCL chooses
    among algorithms and does not say, so that there nothing is counted."""

    name = "allreduce"

    def __init__(self, peers: Peers, wire_dtype: torch.dtype | None = None) -> None:
        if wire_dtype not in _NO_ROUNDING:
            raise ConfigError(
                f"--wire-dtype {str(wire_dtype).removeprefix('torch.')}: --sync allreduce adds in the dtype that it "
                "sends, so that sums would not be taken in float32; take --sync ring or parameter-server for that"
            )
        super().__init__(peers, wire_dtype)

    def _sum(self, work: Tensor, wire: Tensor, index: int) -> None:
        peers = self.peers
        # gloo's ring waits for rank + 1 first, so that is whom a failure is put down to until the inquest says more
        neighbour, phase = (peers.rank + 1) % peers.world, "all_reduce"
        with peers.guard(phase):
            handle = dist.all_reduce(wire, group=peers.group, async_op=True)
        peers.wait(handle, neighbour, phase)
        if wire is not work:
            work.copy_(wire)
        if not peers.on_nccl:
            sizes = (len(wire), wire.element_size())
            traffic = self.account.bucket(index)
            traffic.sent += bytes_sent(*sizes, peers.rank, peers.world, GLOO)
            traffic.received += bytes_sent(*sizes, (peers.rank + 1) % peers.world, peers.world, GLOO)
