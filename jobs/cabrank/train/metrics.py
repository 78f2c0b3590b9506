"""What a run measures: one `Step` an optimizer step, and `metrics.csv`, a long table that loses no metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, as it was when its batch had been seen and before its weights were used again."""

    step: int
    """Counted from 0 over the whole run."""
    epoch: int
    """The pass over the data that the batch belongs to, counted from 0."""
    rows: int
    """Rows in the batch."""
    mse: float
    """Mean squared error of the batch under the weights before the step; the label's unit, squared."""
    gradient_norm: float
    """Euclidean norm of the gradient before it was clipped."""
    seconds: float
    """The step alone: forward, backward, clip, update; on a GPU by the GPU's clock."""
    wait_seconds: float
    """How long the step waited for its batch to be read and copied."""

    @property
    def rows_per_second(self) -> float:
        """Throughput with the waiting counted in."""
        return self.rows / max(self.seconds + self.wait_seconds, 1e-9)


class Metric(NamedTuple):
    """One line of `metrics.csv`."""

    step: int
    epoch: int
    split: str
    name: str
    value: float


def long_format(steps: Iterable[Step], split: str = "train") -> Iterator[Metric]:
    """Each step's measurements as lines of their own: mse, gradient_norm, rows, seconds, wait_seconds."""
    for step in steps:
        for name in ("mse", "gradient_norm", "rows", "seconds", "wait_seconds"):
            yield Metric(step.step, step.epoch, split, name, getattr(step, name))


def to_csv(metrics: Iterable[Metric]) -> bytes:
    """A header, then step,epoch,split,name,value; floats as the shortest text that reads back exactly."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(Metric._fields)
    table.writerows(metrics)
    return text.getvalue().encode()
