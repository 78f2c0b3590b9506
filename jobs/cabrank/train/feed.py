"""Batches on the training device, each ready while the one before it is worked on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import torch
from torch import Tensor

from cabrank.errors import NoDataError

Numbered = tuple[int, Tensor]  # epoch, batch [B, C]


def epochs(batches: Iterable[Tensor]) -> Iterator[Numbered]:
    """The batches over and over, each with the number of its pass. Batches without rows (--nulls drop may empty one)
    are passed over; a whole pass without rows is a `NoDataError`, where it would otherwise go on for ever."""
    for epoch in count():
        rows = 0
        for batch in batches:
            rows += len(batch)
            if len(batch):
                yield epoch, batch
        if not rows:
            raise NoDataError("the data gave no row in a whole pass: it is empty, or --nulls drop left all rows out")


class Feed:
    """Iterates over `batches` on `device`. On a CPU it hands them on. On a GPU each is copied to pinned memory and from
    there, without blocking, on a stream of its own; `fetch_ahead`, called while a step runs, does so for the next."""

    def __init__(self, batches: Iterator[Numbered], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ahead: Numbered | None = None
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Numbered]:
        return self

    def __next__(self) -> Numbered:
        if self._error is not None:
            raise self._error
        epoch, batch = self._ahead or self._fetch()
        self._ahead = None
        if self._copies is not None:
            work = torch.cuda.current_stream(self._device)
            work.wait_stream(self._copies)  # the GPU waits for the copy, not this thread
            batch.record_stream(work)  # and its memory is not reused before the step is done with it
        return epoch, batch

    def fetch_ahead(self) -> None:
        """Fetches the batch that comes next, on a GPU. What goes wrong meanwhile (the end of the data, too) is kept for
        when that batch is asked for, so that the step that is running is still recorded."""
        if self._copies is None or self._ahead is not None or self._error is not None:
            return
        try:
            self._ahead = self._fetch()
        except Exception as error:  # noqa: BLE001  raised again by the next call of __next__
            self._error = error

    def _fetch(self) -> Numbered:
        epoch, batch = next(self._batches)
        if self._copies is None or batch.is_cuda:  # there already
            return epoch, batch
        with torch.cuda.stream(self._copies):
            return epoch, batch.pin_memory().to(self._device, non_blocking=True)
