"""What a dataset asks of a feature engineer; `cabrank.features.engineer.Features` is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class RowTransform(Protocol):
    """Makes each row of a matrix anew, whatever rows stand beside it; the label stays in column 0."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that come back."""

    def __call__(self, matrix: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
        """[n, C] → [n, C']."""


class Bindable(Protocol):
    """Gives a `RowTransform` for a table's columns, the label first; `ConfigError` or `SchemaError` where it cannot."""

    def bind(self, columns: Sequence[str]) -> RowTransform: ...
