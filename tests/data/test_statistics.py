"""Moments against numpy on all rows at once, in any cut, and where naive sums of squares fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabrank.data.statistics import Moments


def pooled(matrix: np.ndarray, cuts: list[int]) -> Moments:
    return Moments.pooled([Moments.of(piece) for piece in np.split(matrix, sorted(cuts))])


def test_by_hand() -> None:
    found = Moments.of(np.array([[1.0, -2.0], [2.0, -2.0], [6.0, -2.0]]))
    assert found.count == 3
    assert found.mean == (3.0, -2.0)
    assert found.m2 == (14.0, 0.0)  # 4 + 1 + 9
    assert found.stddev == pytest.approx((7**0.5, 0.0))
    assert (found.min, found.max) == ((1.0, -2.0), (6.0, -2.0))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 400), st.lists(st.integers(0, 400), max_size=8), st.integers(0, 2**32 - 1))
def test_any_cut_gives_numpys_values(rows: int, cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal([0, 38.9, -77, 1e9], [1, 0.03, 1e-3, 5.0], (rows, 4))
    found = pooled(matrix, [min(cut, rows) for cut in cuts])
    exact = matrix.astype(np.longdouble)
    assert found.count == rows
    np.testing.assert_allclose(found.mean, exact.mean(axis=0).astype(float), rtol=1e-12, atol=1e-13)
    # a piece's mean is rounded to float64, and that rounding is all that may show in how far pieces lie apart
    stddev, rounding = exact.std(axis=0, ddof=1), 4 * 2.0**-52 * abs(exact.mean(axis=0))
    assert (abs(found.stddev - stddev) <= 1e-12 * stddev + rounding).all()
    assert found.min == tuple(matrix.min(axis=0))
    assert found.max == tuple(matrix.max(axis=0))


def test_a_million_rows_far_from_zero() -> None:
    """Here E[x²] − E[x]² in float64 is wrong in the second digit."""
    matrix = np.random.default_rng(1).normal(1e6, 0.01, (1_000_000, 1))
    found = pooled(matrix, list(range(70_000, 1_000_000, 70_000)))
    exact = matrix.astype(np.longdouble)
    assert found.mean[0] == pytest.approx(float(exact.mean()), rel=1e-12)
    assert found.stddev[0] == pytest.approx(float(exact.std(ddof=1)), rel=1e-12)


def test_no_rows_and_one() -> None:
    empty = Moments.of(np.empty((0, 3)))
    one = Moments.of(np.array([[5.0, 0.0, -1.0]]))
    assert empty == Moments() == Moments.pooled([]) == Moments.pooled([empty, empty])
    assert (empty.stddev, one.stddev) == ((), ())
    assert Moments.pooled([empty, one, empty]) == one
    assert one.m2 == (0.0, 0.0, 0.0)


def test_the_matrix_is_left_alone() -> None:
    matrix = np.arange(12.0).reshape(4, 3)
    Moments.of(matrix)
    assert (matrix == np.arange(12.0).reshape(4, 3)).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_json_keeps_every_bit(values: list[float]) -> None:
    column = tuple(values)
    piece = Moments(count=7, mean=column, m2=column, min=column, max=column)
    back = Moments.model_validate_json(piece.model_dump_json())
    assert [value.hex() for value in back.mean] == [value.hex() for value in column]
