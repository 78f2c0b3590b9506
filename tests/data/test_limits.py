"""Budget and Gate, with threads that would be stuck if either were wrong (the suite's timeout would tell)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import pytest

from cabrank.data.limits import Budget, Gate
from cabrank.errors import ThrottledError


def test_a_budget_is_never_overdrawn_and_always_returned() -> None:
    budget, lock = Budget(100), Lock()
    held = most = 0

    def use(amount: int) -> None:
        nonlocal held, most
        with budget.hold(amount):
            with lock:
                held += min(amount, 100)
                most = max(most, held)
            with lock:
                held -= min(amount, 100)

    amounts = [random.Random(0).choice([1, 30, 60, 99, 100, 5000]) for _ in range(400)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, amounts))
    assert held == 0
    assert most <= 100


def test_a_large_one_is_not_overtaken() -> None:
    budget, order = Budget(10), list[str]()

    def use(name: str, amount: int) -> None:
        with budget.hold(amount):
            order.append(name)

    with ThreadPoolExecutor(2) as pool, budget.hold(1):
        pool.submit(use, "large", 10)
        _until(lambda: budget.waiting == 1)
        pool.submit(use, "small", 1)  # would fit at once, if it were let past
        _until(lambda: budget.waiting == 2)
    assert order == ["large", "small"]


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def test_a_failed_holder_returns_what_it_held() -> None:
    budget = Budget(5)
    for _ in range(3):
        with pytest.raises(KeyError), budget.hold(5):
            raise KeyError
    with budget.hold(5):
        pass


def _throttled(gate: Gate) -> None:
    with pytest.raises(ThrottledError), gate.request():
        raise ThrottledError


def test_throttling_halves_and_success_brings_back() -> None:
    gate = Gate(16)
    limits = []
    for _ in range(6):
        _throttled(gate)
        limits.append(gate.limit)
    assert limits == [8, 4, 2, 1, 1, 1]
    for _ in range(500):
        with gate.request():
            pass
    assert gate.limit == 16


def test_a_burst_halves_once() -> None:
    gate, together = Gate(4), Barrier(4)

    def one() -> None:
        with gate.request():
            together.wait()
            raise ThrottledError

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(one) for _ in range(4)]:
            assert isinstance(future.exception(), ThrottledError)
    assert gate.limit == 2
