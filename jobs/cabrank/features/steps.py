"""The steps that a feature spec is made of: numbers in, numbers out, a row at a time and many at once.

A step has blanks that the data fills in (edges, categories, means) and that a spec may as well state itself. Fitting
returns the step with its blanks filled, so that a fitted spec is a spec, and is written and read as one.

    columns [n] each  ─►  apply  ─►  block [n, K], one column an output

Every function of a value is computed on contiguous float64, so that a row's result does not depend on the rows that
happen to stand beside it, and a CSV written out holds to the last bit what a batch made on the fly does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from cabrank.errors import ConfigError

Matrix = npt.NDArray[np.float64]
Need = Literal["moments", "values"]

MAX_VALUES = 1_000
"""Distinct values that a column may have and still be taken apart by value."""
MAX_OUTPUTS = 4_096
"""Columns that one step may make: beyond, an index and an embedding serve better."""
EARTH_RADIUS_METRES = 6_371_008.8  # IUGG's mean radius

Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Facts:
    """What fitting knows of one column; `values` only where a step needs them."""

    mean: float
    stddev: float
    low: float
    high: float
    values: tuple[float, ...] = ()


class Step(BaseModel, ABC):
    """One step of a spec. `kind` says which; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Columns that it reads: the data's, or outputs of steps before it."""

    @property
    def need(self) -> Need | None:
        """What of the data is needed to fill its blanks; None where there is none."""
        return None

    def fit(self, facts: Sequence[Facts]) -> Self:  # noqa: ARG002
        """The step with its blanks filled from the facts of its inputs, in their order."""
        return self

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that it makes, once it has no blanks."""

    @abstractmethod
    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:
        """The block [n, K] of its outputs; `outside` counts, by input, values that lie outside what was fitted."""


def box(column: str, fact: Facts) -> tuple[float, float]:
    """Least and largest value; `ConfigError` where they are one."""
    if not fact.low < fact.high:
        raise ConfigError(f"column {column!r} is constant ({fact.low!r} in every row): it cannot be scaled or divided "
                          "into bins; leave it out of the step")  # fmt: skip
    return fact.low, fact.high


def check_outputs(count: int, columns: Sequence[str], remedy: str) -> None:
    """`ConfigError` where a step would make more columns than a table can have."""
    if count > MAX_OUTPUTS:
        raise ConfigError(f"{', '.join(columns)}: {count:,} columns would be made, and {MAX_OUTPUTS:,} are the most; "
                          f"take {remedy}")  # fmt: skip
