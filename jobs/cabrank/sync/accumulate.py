"""Gradient accumulation: one node, several shards in memory, and gradients that add up in place.

    for each shard:  (mean loss of the shard × its rows / all rows).backward()        `.grad` adds, nobody sends

The sum of the weighted gradients is the gradient of the mean over all rows, whatever the shards' sizes. Without the
weights it would be a mean of means, which differs as soon as one shard is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from cabrank.errors import ConfigError
from cabrank.sync.base import Strategy
from cabrank.sync.peers import Peers


def accumulate(
    loss: Callable[[Tensor], Tensor],
    shards: Sequence[Tensor],
    rows: int,
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Tensor:
    """Adds the gradients of all `shards` [b, C] up; returns their part of the mean loss over `rows`, a scalar.

    `loss` gives a shard's mean loss. `rows` counts the rows of all shards, of all ranks: then the sum over the ranks is
    the gradient over all of them. `no_sync`, DDP's, encloses forward and backward of all shards but the last, so that
    the ranks exchange once."""
    parts = []
    for number, shard in enumerate(shards, 1):
        with nullcontext() if number == len(shards) else no_sync():
            part = loss(shard) * (len(shard) / rows)
            part.backward()  # type: ignore[no-untyped-call]
        parts.append(part.detach())
    return torch.stack(parts).sum()


class Accumulate(Strategy):
    """The strategy of a world of one: the bucket is the sum already."""

    name = "accumulate"

    def __init__(self, peers: Peers, wire_dtype: torch.dtype | None = None) -> None:
        if peers.world > 1:
            raise ConfigError(
                f"--sync accumulate adds up the shards of one process, and there are {peers.world}: take "
                "parameter-server, ring or allreduce, or start one process"
            )
        if wire_dtype is not None:
            raise ConfigError(f"--wire-dtype {wire_dtype}: --sync accumulate sends nothing; leave --wire-dtype out")
        super().__init__(peers)

    def _sum(self, work: Tensor, wire: Tensor, index: int) -> None:
        """Nothing to add."""
