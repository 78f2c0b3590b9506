"""What each process has to make for itself: clients, thread pools, locks."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Slot(Generic[T]):
    def __init__(self) -> None:
        self.lock = Lock()
        self.value: T | None = None


class PerProcess(Generic[T]):
    """A value made at first use, once a process. A forked child makes its own, and a pickle carries only the recipe:
    connections and threads survive neither."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._slots: dict[int, _Slot[T]] = {}

    def get(self) -> T:
        """This process's value."""
        # setdefault is atomic; a lock of the parent's could have been copied while it was held
        slot = self._slots.setdefault(os.getpid(), _Slot())
        if (value := slot.value) is not None:
            return value
        with slot.lock:
            if slot.value is None:
                slot.value = self._make()
            return slot.value

    def forget(self, value: T) -> None:
        """The next `get` makes a new one, unless another thread has already replaced `value`."""
        slot = self._slots.get(os.getpid())
        if slot is not None:
            with slot.lock:
                if slot.value is value:
                    slot.value = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_slots": {}}
