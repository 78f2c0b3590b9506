"""The training loop, for a world of one and of many: for each batch take a step, measure it, report it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from cabrank.errors import DivergedError
from cabrank.train.feed import Feed, epochs
from cabrank.train.metrics import Step
from cabrank.train.step import Model, Sync, alone, take_step


def train(
    model: Model,
    batches: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    iterations: int,
    clip_norm: float | None = None,
    sync: Sync = alone,
    report: Callable[[Step], Any] = lambda _: None,
) -> None:
    """Takes `iterations` steps over [B, C] batches, which start over as often as that needs; `report` gets every step,
    the diverged one included. A loss or gradient that is not finite ends the run with a `DivergedError`."""
    device = next(model.parameters()).device
    feed = Feed(islice(epochs(batches), iterations), device)
    stopwatch = Stopwatch(device)
    last_finite = math.nan
    for number in range(iterations):
        epoch, batch = next(feed)
        stopwatch.start()
        outcome = take_step(model, batch, optimizer, clip_norm, sync)
        stopwatch.stop()
        feed.fetch_ahead()  # a GPU is busy with the step now
        mse, norm = outcome.mse.item(), outcome.gradient_norm.item()  # waits for it
        report(Step(number, epoch, len(batch), mse, norm, *stopwatch.read()))
        if not (math.isfinite(mse) and math.isfinite(norm)):
            raise DivergedError(_remedy(number, mse, norm, last_finite, clip_norm, optimizer))
        last_finite = mse


class Stopwatch:
    """Splits an iteration into the step and the rest of it, which is waiting for the batch. On a GPU the step is timed
    by events on the GPU's own clock, since the host only queues it."""

    def __init__(self, device: torch.device) -> None:
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        self._events = [event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else None
        self._started = self._stopped = self._last = time.perf_counter()

    def start(self) -> None:
        """The batch is there."""
        self._started = time.perf_counter()
        if self._events:
            self._events[0].record()

    def stop(self) -> None:
        """The step is done, or queued."""
        self._stopped = time.perf_counter()
        if self._events:
            self._events[1].record()

    def read(self) -> tuple[float, float]:
        """Seconds of the step, and of the rest since the last read. Waits for the GPU."""
        seconds = self._stopped - self._started
        if self._events:
            self._events[1].synchronize()
            seconds = self._events[0].elapsed_time(self._events[1]) / 1000
        now = time.perf_counter()
        wait, self._last = max(now - self._last - seconds, 0.0), now
        return seconds, wait


def _remedy(
    step: int, mse: float, norm: float, last: float, clip_norm: float | None, optimizer: torch.optim.Optimizer
) -> str:
    rate = optimizer.param_groups[0]["lr"]
    found = f"loss is {mse}" if not math.isfinite(mse) else f"gradient's norm is {norm}, at a loss of {mse:.6g}"
    before = f"the last finite loss was {last:.6g}" if math.isfinite(last) else "no loss before it was finite"
    clip = "clip the gradient (--gradient-norm 0.5)" if clip_norm is None else f"clip harder than at {clip_norm:g}"
    return (
        f"training diverged at iteration {step}: the {found}; {before}. "
        f"To keep it finite, {clip}, take a smaller --learning-rate than {rate:g}, or standardise the features"
    )
