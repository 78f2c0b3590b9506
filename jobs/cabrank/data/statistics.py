"""Count, mean, standard deviation, minimum and maximum of columns, in pieces that can be pooled in any grouping.

A piece keeps m2, the sum of squared deviations from its own mean, and never a sum of squares: coordinates near 38.9
that vary in the second decimal would lose half their digits in one. Pooling pieces i of n_i rows (Chan, Golub and
LeVeque 1983, for k pieces at once):

    mean = Σ n_i · mean_i / N            m2 = Σ m2_i + Σ n_i · (mean_i − mean)²
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Moments(BaseModel):
    """Statistics of `count` rows of C columns: four tuples of C values, empty when `count` is 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    count: int = 0
    mean: tuple[float, ...] = ()
    m2: tuple[float, ...] = ()
    min: tuple[float, ...] = ()
    max: tuple[float, ...] = ()

    @classmethod
    def of(cls, matrix: NDArray[np.floating]) -> Moments:
        """Statistics of finite values [n, C], in two passes: the second mends the rounding of the first's mean."""
        import numpy as np

        if not len(matrix):
            return cls()
        columns = np.array(matrix.T, dtype=np.float64, order="C")  # a copy, [C, n]: sums along rows are 7 times as fast
        low, high, rough = columns.min(axis=1), columns.max(axis=1), columns.mean(axis=1)
        columns -= rough[:, None]
        rest = columns.mean(axis=1)
        m2 = np.einsum("cn,cn->c", columns, columns) - len(matrix) * rest * rest
        return cls._of(len(matrix), (rough + rest, m2.clip(min=0), low, high))

    @classmethod
    def pooled(cls, pieces: Sequence[Moments]) -> Moments:
        """Statistics of all rows of `pieces`; the same pieces in the same order give the same bits."""
        import numpy as np

        pieces = [piece for piece in pieces if piece.count]
        if len(pieces) < 2:
            return pieces[0] if pieces else cls()
        counts = np.array([[piece.count] for piece in pieces], dtype=np.float64)  # [k, 1]
        means, m2 = np.array([piece.mean for piece in pieces]), np.array([piece.m2 for piece in pieces])  # [k, C]
        mean = means[0] + (counts * (means - means[0])).sum(axis=0) / counts.sum()
        spread = m2.sum(axis=0) + (counts * (means - mean) ** 2).sum(axis=0)
        low = np.array([piece.min for piece in pieces]).min(axis=0)
        high = np.array([piece.max for piece in pieces]).max(axis=0)
        return cls._of(sum(piece.count for piece in pieces), (mean, spread, low, high))

    @classmethod
    def _of(cls, count: int, columns: Sequence[NDArray[np.floating]]) -> Moments:
        mean, m2, low, high = (tuple(column.tolist()) for column in columns)
        return cls(count=count, mean=mean, m2=m2, min=low, max=high)

    @property
    def stddev(self) -> tuple[float, ...]:
        """The sample's standard deviation (divided by count − 1) of each column; empty for fewer than two rows."""
        return tuple((m2 / (self.count - 1)) ** 0.5 for m2 in self.m2) if self.count > 1 else ()
