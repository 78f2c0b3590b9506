"""The reference pass against numpy's least squares on all rows at once, and on columns chosen to hurt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cabrank.errors import BadValueError, NoDataError
from cabrank.train.least_squares import LeastSquares

Table = npt.NDArray[np.float64]
REAL = Path(os.environ.get("CABRANK_REAL_TRIPS", Path(__file__).parents[3] / "shared" / "data" / "dc_taxi"))


def direct(table: Table) -> tuple[float, float]:
    """RMSE of the mean and of least squares, all rows at once: centred in extended precision, then numpy's lstsq."""
    wide = table.astype(np.longdouble)
    centred = (wide - wide.mean(axis=0)).astype(np.float64)
    label, features = centred[:, 0], centred[:, 1:]
    length = np.linalg.norm(features, axis=0)
    features = features / np.where(length > 0, length, 1)
    weights = np.linalg.lstsq(features, label, rcond=None)[0]
    return float(np.sqrt(np.mean(label**2))), float(np.sqrt(np.mean((label - features @ weights) ** 2)))


def in_batches(table: Table, size: int) -> list[Table]:
    return [table[start : start + size] for start in range(0, len(table), size)]


def nasty(plain: Table) -> dict[str, Table]:
    constant, offset, near, twins, scaled = (plain.copy() for _ in range(5))
    constant[:, 5] = 2017
    offset[:, 1:] += 1e6
    near[:, 5] = 1e6 + 1e-3 * np.random.default_rng(1).normal(size=len(near))
    twins[:, 3] = twins[:, 1]
    scaled[:, 1] *= 1e12
    scaled[:, 2] *= 1e-12
    return {"plain": plain, "constant": constant, "offset": offset, "near": near, "twins": twins, "scaled": scaled}


@pytest.mark.parametrize("batch", [1, 255, 256, 4097, 1 << 20])
def test_any_batch_size_gives_what_numpy_gives_on_all_rows(batch: int, trips: Table) -> None:
    table = trips[:5_000]
    seen = LeastSquares.of(in_batches(table, batch))
    mean, optimum = direct(table)
    assert seen.rows == 5_000
    assert seen.mean().rmse == pytest.approx(mean, rel=1e-12)
    assert seen.mean().bias == pytest.approx(table[:, 0].mean(), rel=1e-12)
    assert seen.optimum().rmse == pytest.approx(optimum, rel=1e-12)


@pytest.mark.parametrize("name", ["plain", "constant", "offset", "near", "twins", "scaled"])
def test_columns_that_break_the_normal_equations(name: str, trips: Table) -> None:
    table = nasty(trips)[name]
    seen = LeastSquares.of(in_batches(table, 3_000))
    mean, optimum = direct(table)
    assert seen.mean().rmse == pytest.approx(mean, rel=1e-9)
    assert seen.optimum().rmse == pytest.approx(optimum, rel=1e-9)
    assert np.isfinite(seen.optimum().weights).all()


def test_the_normal_equations_do_lose_what_qr_keeps(trips: Table) -> None:
    table = nasty(trips)["near"]  # the claim of the module's docstring, so that it stays true
    rows = np.column_stack([np.ones(len(table)), table[:, 1:]])
    condition = np.linalg.cond(rows.T @ rows)
    assert condition * np.finfo(np.float64).eps > 1


def test_a_constant_column_stays_constant_over_many_folds(trips: Table) -> None:
    table = np.tile(trips, (15, 1))
    table[:, 5] = 2017.1
    assert LeastSquares.of(in_batches(table, 10_000)).optimum().weights[4] == 0


@pytest.mark.parametrize("name", ["train.csv", "valid.csv"])
def test_real_trips(name: str) -> None:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{path} is not here: set CABRANK_REAL_TRIPS to its folder")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    rows = np.column_stack([np.ones(len(table)), table[:, 1:]])
    weights = np.linalg.lstsq(rows, table[:, 0], rcond=None)[0]
    seen = LeastSquares.of(in_batches(table, 10))
    assert seen.optimum().rmse == pytest.approx(np.sqrt(np.mean((rows @ weights - table[:, 0]) ** 2)), abs=1e-9)
    assert seen.mean().rmse == pytest.approx(table[:, 0].std(), abs=1e-9)


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_fewer_rows_than_columns_are_fitted_exactly(rows: int, trips: Table) -> None:
    table = trips[:rows]
    seen = LeastSquares.of([table])
    assert seen.optimum().rmse == pytest.approx(0, abs=1e-9)
    assert seen.mean().rmse == pytest.approx(table[:, 0].std(), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_judges_any_linear_model(dtype: type, trips: Table) -> None:
    table: npt.NDArray[Any] = trips[:10_000].astype(dtype)
    weights, bias = np.linspace(-1, 1, 8), 3.0
    rest = table[:, 1:].astype(np.float64) @ weights + bias - table[:, 0]
    assert LeastSquares.of(in_batches(table, 999)).judge(bias, weights).mse == pytest.approx(
        np.mean(rest**2), rel=1e-12
    )


def test_a_diverged_model_has_no_finite_error_and_no_warning(trips: Table) -> None:
    judged = LeastSquares.of([trips[:100]]).judge(1e300, np.full(8, 1e300))
    assert not np.isfinite(judged.rmse)


def test_a_label_alone_has_its_mean_as_the_optimum() -> None:
    seen = LeastSquares.of([np.array([[1.0], [3.0]])])
    assert seen.optimum().bias == pytest.approx(2.0)
    assert seen.optimum().rmse == pytest.approx(1.0)


def test_no_rows_at_all() -> None:
    with pytest.raises(NoDataError, match="no row"):
        LeastSquares.of([]).mean()
    with pytest.raises(NoDataError, match="no row"):
        LeastSquares.of([np.empty((0, 9))]).optimum()


def test_nan_is_not_averaged_away(trips: Table) -> None:
    table = trips[:10].copy()
    table[3, 4] = np.nan
    with pytest.raises(BadValueError, match="--nulls"):
        LeastSquares.of([table])
