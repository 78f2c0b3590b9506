"""The best linear model and the mean predictor, exactly, from one pass over data that does not fit in memory.

All that squared errors need to know of a table is a small triangle. Take the rows [1 | features | label], an
N × (p + 2) matrix A, and its QR factorisation A = Q·R with orthonormal columns in Q. For any bias b and weights w

    ‖A·(b, w, −1)‖ = ‖Q·R·(b, w, −1)‖ = ‖R·(b, w, −1)‖,        so        MSE(b, w) = ‖R·(b, w, −1)‖² / N.

R is (p + 2) × (p + 2) whatever N is, and it streams: the R of two blocks of rows is the R of their R's, one below the
other (TSQR; Demmel, Grigori, Hoemmen, Langou: "Communication-optimal parallel and sequential QR and LU", 2012).

Why QR and not the normal equations AᵀA, which stream as well? They square the condition number. A year column of
2017 ± 1.4 beside the constant costs them 13 of a float64's 16 digits, an offset of 1e6 all of them; R keeps the digits
that the data has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cabrank.errors import BadValueError, NoDataError

Matrix = npt.NDArray[np.float64]

_GROWTH = 32.0  # of a column's rounding errors over many folds, in units of eps times its length
BLOCK_ROWS = 256  # a block of 256 × 11 numbers stays in the first-level cache: measured several times as fast as 4,096
WIDE_COLUMNS, WIDE_BLOCK_ROWS = 17, 2_048  # wide blocks are shared by BLAS's threads, and small ones cost them waits
BATCH_BLOCKS = 16  # blocks factorised by one call of numpy: bounds the copy that is made of the rows


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A bias and [p] weights, and its error on the rows that it was judged by."""

    bias: float
    weights: Matrix
    mse: float

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, in the label's unit."""
        return float(np.sqrt(self.mse))


class LeastSquares:
    """Sees batches [B, 1 + p] with the label in column 0, in any number; then answers for every linear model."""

    def __init__(self) -> None:
        self.rows = 0
        self._r: Matrix | None = None

    @classmethod
    def of(cls, batches: Iterable[Any]) -> LeastSquares:
        """From all of `batches`: arrays, or tensors on the CPU, of any float type."""
        seen = cls()
        for batch in batches:
            seen.add(np.asarray(batch))
        return seen

    def add(self, batch: npt.NDArray[Any]) -> None:
        """Folds one batch in; memory beside it stays below a megabyte for tens of columns."""
        span = BLOCK_ROWS * BATCH_BLOCKS
        for start in range(0, len(batch), span):
            self._fold(batch[start : start + span])
        self.rows += len(batch)

    def judge(self, bias: float, weights: npt.ArrayLike) -> LinearModel:
        """The error that the linear model with this bias and these [p] weights has on all rows seen."""
        coefficients = np.concatenate([[bias], np.asarray(weights, dtype=np.float64).ravel(), [-1.0]])
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged model's error may well be infinite
            mse = np.square(np.linalg.norm(self._triangle() @ coefficients) / np.sqrt(self.rows))
        return LinearModel(float(bias), coefficients[1:-1], float(mse))

    def mean(self) -> LinearModel:
        """The model that always says the label's mean: what every other one has to beat."""
        r = self._triangle()
        return self.judge(r[0, -1] / r[0, 0], np.zeros(r.shape[1] - 2))

    def optimum(self) -> LinearModel:
        """The linear model with the least squared error; of least norm where columns are constant or collinear."""
        r = self._triangle()
        # Householder's R keeps a column's distance from the constant in the rows below the first: solve for the weights
        # there, where an offset of 1e6 is already gone, with columns of one length so that units do not matter.
        slopes, label = r[1:, 1:-1], r[1:, -1]
        scale = np.linalg.norm(slopes, axis=0)
        noise = np.finfo(np.float64).eps * np.linalg.norm(r[:, 1:-1], axis=0) * _GROWTH
        scale = np.where(scale > noise, scale, np.inf)  # what rounding left of a constant column is not a direction
        cutoff = np.finfo(np.float64).eps * max(self.rows, r.shape[1])  # numpy's own for the N rows that R stands for
        weights = np.linalg.lstsq(slopes / scale, label, rcond=cutoff)[0] / scale
        bias = (r[0, -1] - r[0, 1:-1] @ weights) / r[0, 0]
        return self.judge(bias, weights)

    def _triangle(self) -> Matrix:
        if self._r is None or not self.rows:
            raise NoDataError("there is no row to fit a model to: the data is empty, or --nulls drop left all rows out")
        return self._r

    def _fold(self, rows: npt.NDArray[Any]) -> None:
        """R of [R | rows], by way of the R of each block of rows, all blocks in one call."""
        columns = rows.shape[1] + 1
        block_rows = BLOCK_ROWS if columns < WIDE_COLUMNS else WIDE_BLOCK_ROWS
        blocks = -(-len(rows) // block_rows)
        table = np.zeros((blocks * block_rows, columns))  # rows of zeros fill the last block and change no length
        table[: len(rows), 0] = 1
        table[: len(rows), 1:-1] = rows[:, 1:]
        table[: len(rows), -1] = rows[:, 0]
        if not np.isfinite(table).all():
            raise BadValueError("a batch holds NaN or infinity, which no error can be computed from: see --nulls")
        triangles = _triangle_of(table.reshape(blocks, block_rows, columns)).reshape(-1, columns)
        above = np.zeros((columns, columns)) if self._r is None else self._r
        self._r = _triangle_of(np.vstack([above, triangles]))


def _triangle_of(matrices: Matrix) -> Matrix:
    """R of each matrix in [..., M, K]: [..., min(M, K), K]."""
    r: Any = np.linalg.qr(matrices, mode="r")  # numpy's annotations know no mode but the one that gives Q as well
    return np.asarray(r, dtype=np.float64)
