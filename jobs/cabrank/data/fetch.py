"""Whole objects and ranges of them, fast and exactly as planned: ranged, pinned, checked, retried, in bounded memory.

info, 40 MB ──► [0, 14) [14, 27) [27, 40)   ranges of ≤ 16 MiB, one request each, If-Match on the planned ETag
                   │       │        │       Gate: requests at once, halved by throttling; each retried on its own
                   └───────┴────────┘
                 one buffer, made once      Budget: bytes at once over all objects
                           │
                 checksum, where there is one
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Event, Lock

from cabrank.data.limits import Budget, Gate
from cabrank.errors import StorageError, UnreachableError
from cabrank.store import ObjectInfo, Store
from cabrank.store.process import PerProcess
from cabrank.store.retry import Patience, persist

Buffer = bytes | memoryview

RANGE_BYTES = 16 << 20  # a usual part is one request; a large one's ranges outlast a round trip by far
CONCURRENCY = 16  # requests; S3 gives one about 90 MB/s, so these fill 10 Gbit/s
BUDGET_BYTES = 256 << 20


@dataclass(slots=True)
class Ledger:
    """What downloading has cost this process so far."""

    bytes: int = 0
    requests: int = 0
    """Including those that failed."""
    retries: int = 0
    seconds: float = 0.0
    """Spent in fetches, summed over the threads that waited for them."""
    unpinned: int = 0
    """Objects read from sources that give nothing to tell one version from another by."""


class Fetcher:
    """Reads objects of one store. Shared by threads; each process that it is carried into starts its own threads and
    its own ledger."""

    def __init__(
        self,
        store: Store,
        *,
        range_bytes: int = RANGE_BYTES,
        concurrency: int = CONCURRENCY,
        budget_bytes: int = BUDGET_BYTES,
        patience: Patience | None = None,
    ) -> None:
        """At most `concurrency` requests, and about `budget_bytes` of objects, are on their way at once."""
        self._store = store
        self._range_bytes = range_bytes
        self._concurrency = concurrency
        self._budget_bytes = budget_bytes
        self._patience = patience or Patience()
        self._engine: PerProcess[_Engine] = PerProcess(self._make_engine)

    @property
    def ledger(self) -> Ledger:
        """A copy of this process's ledger as it stands."""
        engine = self._engine.get()
        with engine.lock:
            return replace(engine.ledger)

    @property
    def requests_at_once(self) -> int:
        """How many the store bears just now: fewer than at the start after it has throttled."""
        return self._engine.get().gate.limit

    def fetch(self, info: ObjectInfo) -> Buffer:
        """The whole object that `info` describes. Errors as of `Store.read`; transient ones only after the last try,
        with the number of tries, the seconds they took and the last cause."""
        return self._timed(info, 0, info.size)

    def fetch_range(self, info: ObjectInfo, start: int, length: int) -> Buffer:
        """Bytes [start, start + length) of it; errors as of `fetch`."""
        return self._timed(info, start, length)

    def _make_engine(self) -> _Engine:
        return _Engine(self._concurrency, self._budget_bytes)

    def _timed(self, info: ObjectInfo, start: int, length: int | None) -> Buffer:
        if not self._store.remote:
            engine, began = self._engine.get(), time.monotonic()
            data: Buffer = self._store.read(info, start, length)
            engine.add(requests=1)
        else:
            engine = self._engine.get()
            with engine.budget.hold(self._budget_bytes if length is None else length):
                began = time.monotonic()  # waiting for others' bytes is no downloading
                data = self._download(engine, info, start, length)
        engine.add(bytes=len(data), seconds=time.monotonic() - began, unpinned=int(not info.pin))
        return data

    def _download(self, engine: _Engine, info: ObjectInfo, start: int, length: int | None) -> Buffer:
        if length is None or length <= self._range_bytes or not self._store.splittable(info):
            return self._request(engine, info, start, length, Event())
        buffer = self._ranges(engine, info, start, length)
        if length == info.size and not self._is_sound(info, buffer):
            buffer = self._ranges(engine, info, start, length)
            if not self._is_sound(info, buffer):
                raise UnreachableError(f"{info.uri}: the checksum does not fit, twice: check network and object")
        return buffer

    def _ranges(self, engine: _Engine, info: ObjectInfo, start: int, length: int) -> memoryview:
        """[start, start + length) by several requests at once; the first failure ends them all."""
        import numpy as np

        buffer = np.empty(length, np.uint8).data  # not zeroed: each page is touched once, by its range
        count = -(-length // self._range_bytes)
        edges = [length * i // count for i in range(count + 1)]
        stop = Event()

        def fill(low: int, high: int) -> None:
            buffer[low:high] = self._request(engine, info, start + low, high - low, stop)

        futures = [engine.pool.submit(fill, low, high) for low, high in pairwise(edges)]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
        return buffer

    def _request(self, engine: _Engine, info: ObjectInfo, start: int, length: int | None, stop: Event) -> bytes:
        """One range, tried until `Patience` ends."""

        def once() -> bytes:
            with engine.gate.request():
                engine.add(requests=1)
                return self._store.read(info, start, length)

        def count(_: StorageError) -> None:
            engine.add(retries=1)

        return persist(once, self._patience, on_retry=count, stop=stop)

    def _is_sound(self, info: ObjectInfo, buffer: memoryview) -> bool:
        """Whether the whole object's checksum fits, or there is none. (S3 gives none with a range, so that objects in
        several ranges ask for it; those in one request are checked on their way.)"""
        checksum = persist(lambda: self._store.checksum(info), self._patience)
        return checksum is None or checksum.fits(buffer)


class _Engine:
    """A process's moving parts."""

    def __init__(self, concurrency: int, budget_bytes: int) -> None:
        self.pool = ThreadPoolExecutor(concurrency, thread_name_prefix="fetch")
        self.gate = Gate(concurrency)
        self.budget = Budget(budget_bytes)
        self.ledger = Ledger()
        self.lock = Lock()

    def add(self, **amounts: float) -> None:
        """To the ledger."""
        with self.lock:
            for name, amount in amounts.items():
                setattr(self.ledger, name, getattr(self.ledger, name) + amount)
