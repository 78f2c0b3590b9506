"""Who leaves the cache when room is needed: pure decisions, no files.

The entry whose next use lies farthest ahead leaves first (Bélády 1966), and a newcomer stays out when its own next
use is the farthest of all. That rule needs the future, which the plan knows. Worked example, room for two, order A B
C A B C:

    A, B stored    C: next used at 5, after A (3) and B (4): stays out, is streamed    A hit   B hit   C streamed

where dropping the least recently used would have missed all six.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """One entry in the folder."""

    size: int
    """Bytes of the file."""
    used: float
    """Seconds since 1970 of its last use, by any process."""


class Uses:
    """In which order this process will need its entries."""

    def __init__(self) -> None:
        self._ahead: dict[str, deque[int]] = {}

    def plan(self, order: Iterable[str]) -> None:
        """Replaces the future by `order`; what was planned before stays known as this process's own."""
        for ahead in self._ahead.values():
            ahead.clear()
        for position, digest in enumerate(order):
            self._ahead.setdefault(digest, deque()).append(position)

    def used(self, digest: str) -> None:
        """The nearest planned use of `digest` has happened."""
        if ahead := self._ahead.get(digest):
            ahead.popleft()

    def rank(self, digest: str, used: float, opened: float) -> tuple[int, float] | None:
        """Sort key, first to leave first; None for what must not leave.

        Strangers that nobody used since this process opened the cache (at `opened`) are left over from earlier runs and
        go first; then what this process needs no more, oldest use first; then the farthest next use. Strangers in use
        are another process's: taking them would make the two evict each other for ever. Without a plan all are equal.
        """
        ahead = self._ahead.get(digest)
        if ahead:
            return (2, -ahead[0])
        if ahead is not None or not self._ahead:
            return (1, used)
        return (0, used) if used < opened else None


def victims(stored: Mapping[str, Stored], excess: int, uses: Uses, newcomer: str, opened: float) -> list[str] | None:
    """Digests to remove so that `excess` bytes come free, in this order; None when the newcomer should stay out."""
    if excess <= 0:
        return []
    limit = uses.rank(newcomer, math.inf, opened) or (0, math.inf)
    ranked = [(rank, digest) for digest, entry in stored.items() if (rank := uses.rank(digest, entry.used, opened))]
    leaving: list[str] = []
    for rank, digest in sorted(ranked):
        if excess <= 0 or rank >= limit:
            break
        leaving.append(digest)
        excess -= stored[digest].size
    return leaving if excess <= 0 else None
