"""Data for the training tests: taxi-like trips, whose raw columns are what makes plain SGD explode."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest


@pytest.fixture(scope="session")
def trips() -> npt.NDArray[np.float64]:
    """[20000, 9]: a fare in USD, four coordinates in degrees, then year, month, day of week and hour."""
    draw, rows = np.random.default_rng(0), 20_000
    places = np.array([38.9, -77.0, 38.9, -77.0]) + draw.normal(0, 0.03, (rows, 4))
    times = np.column_stack([draw.integers(low, high, rows) for low, high in ((2015, 2020), (1, 13), (1, 8), (0, 24))])
    fare = 3.25 + 110 * np.abs(places[:, 0] - places[:, 2]) + draw.exponential(2.0, rows)
    return np.column_stack([fare, places, times])
