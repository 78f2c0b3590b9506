"""The one rule by which calls to a store are tried again: transient errors only, exponential backoff, full jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from cabrank.errors import StorageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to go on trying. The wait before try n is random in [0, min(`cap`, `first` · 2ⁿ⁻¹)] seconds, so that
    a thousand ranks that failed together do not come back together."""

    attempts: int = 8
    first: float = 0.1
    """Seconds."""
    cap: float = 5.0
    """Seconds."""
    total: float = 30.0
    """Seconds after which no further try begins: a host that swallows packets costs each try its connect timeout."""

    def wait(self, failures: int) -> float:
        """Seconds to wait after the given number of failures in a row."""
        return random.uniform(0.0, min(self.cap, self.first * 2.0 ** (failures - 1)))  # noqa: S311 (no secret)


def persist(
    call: Callable[[], T],
    patience: Patience,
    *,
    on_retry: Callable[[StorageError], None] | None = None,
    stop: Event | None = None,
) -> T:
    """`call()`'s result, tried again while its errors are transient and `patience` lasts; then the last error, with the
    count of tries and their seconds in its message. `on_retry` sees each that is not the last; `stop` ends waiting."""
    stop = stop or Event()
    began = time.monotonic()
    failures = 0
    while True:
        try:
            return call()
        except StorageError as error:
            if not error.transient:
                raise
            failures += 1
            wait = patience.wait(failures)
            spent = time.monotonic() - began
            if failures >= patience.attempts or spent + wait > patience.total or stop.wait(wait):
                tries = f"{failures} tries in {spent:.1f} s" if failures > 1 else "1 try"
                raise type(error)(f"{error} (gave up after {tries})") from error.__cause__ or error
            if on_retry is not None:
                on_retry(error)
