"""The agreement word: what all ranks tell each other before each step, so that they go on, or stop, together.

    rank    rows  has data  stop asked  finite  step  plan id
      0     4096      1         0         1      17    …3f2a
      1     4096      1         1         1      17    …3f2a       rank 1 got SIGTERM: all stop after step 17
      2      811      1         0         1      17    …3f2a       a short last batch: weights are rows / 9003

Each rank fills its row of an int64 table and leaves the others 0; the sum over the ranks is the whole table, on every
rank. 48 bytes a rank, around the ring, whose waits know whom they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor

from cabrank.errors import ConfigError, DesyncError, DivergedError
from cabrank.sync.peers import Peers
from cabrank.sync.ring import Ring


class Word(NamedTuple):
    """What one rank says before it takes step `step`."""

    rows: int
    """In its batch for this step; 0 when it has no data left, and goes along for the others' sake."""
    has_data: bool
    stop: bool
    """It was asked to stop, by a signal: this step is to be the last."""
    finite: bool
    """Its own loss and gradients were, in the step before."""
    step: int
    plan: int
    """`digest` of its plan's id."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks conclude alike."""

    rows: int
    """Of all ranks' batches: a shard's mean loss is weighted by its rows over these."""
    goes_on: bool
    """Some rank has data for this step."""
    stoppers: tuple[int, ...]
    """Ranks that were asked to stop: when there are any, all stop after this step."""


def digest(plan_id: str) -> int:
    """A plan id as a number that fits into the word."""
    return int.from_bytes(sha256(plan_id.encode()).digest()[:8], "big", signed=True)


def pack(word: Word, rank: int, world: int) -> Tensor:
    """The table, flat [world · 6] int64, with this rank's row filled."""
    table = torch.zeros(world, len(word), dtype=torch.int64)
    table[rank] = torch.tensor([int(value) for value in word])
    return table.flatten()


def unpack(table: Tensor) -> list[Word]:
    """All ranks' words, from the summed table."""
    rows = table.view(-1, len(Word._fields)).tolist()
    return [
        Word(rows, bool(data), bool(stop), bool(finite), step, plan) for rows, data, stop, finite, step, plan in rows
    ]


def conclude(words: Sequence[Word], hosts: Sequence[str]) -> Agreed:
    """The same on every rank. `DesyncError` where steps differ, `ConfigError` where plans do, `DivergedError` where a
    rank's loss was not finite; each names the ranks."""

    def ranks(chosen: list[int]) -> str:
        return ", ".join(f"{rank} ({hosts[rank]})" for rank in chosen)

    first = words[0]
    if others := [rank for rank, word in enumerate(words) if word.plan != first.plan]:
        raise ConfigError(
            f"rank 0 ({hosts[0]}) and rank {ranks(others)} have different plans: they were given different data, flags "
            "or versions of the part files. Start all ranks with the same ones"
        )
    if others := [rank for rank, word in enumerate(words) if word.step != first.step]:
        raise DesyncError(
            f"rank 0 ({hosts[0]}) is at step {first.step} and rank {ranks(others)} at step {words[others[0]].step}: "
            "they no longer train together. Resume all from one checkpoint"
        )
    if others := [rank for rank, word in enumerate(words) if not word.finite]:
        raise DivergedError(
            f"training diverged on rank {ranks(others)}, in the step before step {first.step}: its loss or gradient is "
            "not finite. Take a smaller --learning-rate, clip harder, or look at that rank's data"
        )
    return Agreed(
        rows=sum(word.rows for word in words),
        goes_on=any(word.has_data for word in words),
        stoppers=tuple(rank for rank, word in enumerate(words) if word.stop),
    )


class Agreement:
    """Exchanges words over `peers`, a gloo group of its own."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._ring = Ring(peers)

    def reach(self, word: Word) -> Agreed:
        """Waits for every rank's word; `PeerLostError` names one that does not come, and `conclude` has the rest."""
        self._peers.step = word.step
        table = self._ring.all_reduce(pack(word, self._peers.rank, self._peers.world))
        return conclude(unpack(table), self._peers.hosts)

    def close(self) -> None:
        """Ends its thread."""
        self._ring.close()
