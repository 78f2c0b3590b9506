"""What reading has cost: bytes, requests, and where the time went."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from threading import Lock

from cabrank.data import fetch


@dataclass(slots=True)
class Account:
    """Amounts, of one pass or of all of them. Seconds of fetching and parsing are summed over threads, and so may be
    more than the pass took; `wait_seconds` are the ones in which the loop stood still for its next batch."""

    batches: int = 0
    rows: int = 0
    dropped_rows: int = 0
    filled_fields: int = 0
    bytes: int = 0
    """Read from the store, compressed as they lie there; nothing for what came from the cache."""
    requests: int = 0
    retries: int = 0
    fetch_seconds: float = 0.0
    parse_seconds: float = 0.0
    wait_seconds: float = 0.0
    cache_hits: int = 0
    """Parts that came from the cache."""
    cache_misses: int = 0

    @property
    def stall_seconds(self) -> float:
        """Of a batch, on average, that the loop waited for."""
        return self.wait_seconds / self.batches if self.batches else 0.0

    def facts(self) -> dict[str, float]:
        """As plain numbers, `stall_seconds` among them."""
        return {**asdict(self), "stall_seconds": self.stall_seconds}

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


class Ledger:
    """An account of each pass; any thread may add to the latest one."""

    def __init__(self) -> None:
        self._passes = [Account()]
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Ledger], tuple[()]]:
        return Ledger, ()  # another process keeps its own

    def begin(self) -> None:
        """A new pass."""
        with self._lock:
            if self._passes[-1] != Account():
                self._passes.append(Account())

    def add(self, **amounts: float) -> None:
        """To the latest pass."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._passes[-1], name, getattr(self._passes[-1], name) + amount)

    def add_fetched(self, before: fetch.Ledger, after: fetch.Ledger) -> None:
        """What a fetcher's own ledger says that happened between two looks at it."""
        names = {"bytes": "bytes", "requests": "requests", "retries": "retries", "seconds": "fetch_seconds"}
        self.add(**{ours: getattr(after, theirs) - getattr(before, theirs) for theirs, ours in names.items()})

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Adds the seconds that the block takes to the amount `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{name: time.perf_counter() - began})

    @property
    def latest(self) -> Account:
        """Of the latest pass so far."""
        return self.passes[-1]

    @property
    def total(self) -> Account:
        """Of all passes so far."""
        return sum(self.passes, Account())

    @property
    def passes(self) -> list[Account]:
        """Of each pass, the latest one last."""
        with self._lock:
            return [account + Account() for account in self._passes]


def reading_csv(passes: Sequence[Account]) -> bytes:
    """One line a pass, numbered from 0, and a column for each amount."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["pass", *Account().facts()], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"pass": number, **account.facts()} for number, account in enumerate(passes))
    return text.getvalue().encode()
