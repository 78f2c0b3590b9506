"""What keeps concurrent downloads within bounds: bytes held at once, and requests on their way at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from cabrank.errors import ThrottledError


class Budget:
    """Bytes that may be held at once. Granted whole and first come, first served, so that nobody waits holding a part
    of what he needs and no large object starves; one that is larger than all of it gets all of it."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._queue: deque[object] = deque()
        self._changed = Condition()

    @property
    def waiting(self) -> int:
        """How many wait for their bytes."""
        return len(self._queue)

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Waits for `amount` bytes and gives them back when the block ends."""
        amount = min(amount, self._total)
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._queue[0] is ticket and self._free >= amount)
                self._free -= amount
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


class Gate:
    """Requests that may be on their way at once: half as many when the store throttles, one more after each round of
    good answers (additive increase, multiplicative decrease, as TCP does it), never more than at the start."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._limit = float(limit)
        self._running = 0
        self._halvings = 0
        self._changed = Condition()

    @property
    def limit(self) -> int:
        """Requests allowed now."""
        return int(self._limit)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Waits for a place; a `ThrottledError` that leaves the block counts as the store's wish for less."""
        with self._changed:
            self._changed.wait_for(lambda: self._running < self.limit)
            self._running += 1
            seen = self._halvings
        try:
            yield
        except ThrottledError:
            with self._changed:
                if seen == self._halvings:  # the requests of one burst halve it once, not once each
                    self._limit = max(1.0, self._limit / 2)
                    self._halvings += 1
            raise
        else:
            with self._changed:
                self._limit = min(float(self._most), self._limit + 1 / self._limit)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
