"""How a column and the label go together: four measures, none of which says what causes what.

Pearson     how well a straight line tells one from the other, -1 … 1
Spearman    the same for their ranks: any rising or falling curve
ξ (xi)      how nearly the label is a function of the column, whatever its shape; 0: independent, 1: a function
            (Chatterjee, "A new coefficient of correlation", 2021)
mutual information, in bits: how much knowing the column tells of the label, also for text; of values in up to 24
            places of equal size, less what chance alone would give (Miller 1955)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

MOST_PLACES = 24  # as many as a day has hours
ROWS_A_PLACE = 20  # a table of k × k places gets this many rows a cell, or fewer places
CHANCE_SIGMAS = 4.0  # once in 15,000 columns of noise: a table's columns are tens, and each is measured three ways


@dataclass(frozen=True)
class Relation:
    """Of one column with the label; NaN where a measure does not apply (text has no line and no rank)."""

    rows: int
    pearson: float
    spearman: float
    xi: float
    bits: float
    """Mutual information."""
    beyond_chance: bool
    """Whether any of them is larger than noise would make it."""

    @property
    def strength(self) -> float:
        """The strongest of the three coefficients, 0 … 1."""
        return float(np.nanmax([abs(self.pearson), abs(self.spearman), self.xi, 0.0]))


NOTHING = Relation(0, np.nan, np.nan, np.nan, np.nan, beyond_chance=False)


def relate(x: Values | None, codes: Codes, y: Values, seed: int = 0) -> Relation:
    """`x` [n]: the column's numbers, None for text; `codes` [n]: equal for equal values; `y` [n]: the label."""
    if len(y) < 3 or np.ptp(y) == 0 or np.ptp(codes) == 0:
        return NOTHING
    bits, surprise = mutual_information(places(x) if x is not None else frequent(codes), places(y), len(y))
    if x is None:
        return Relation(len(y), np.nan, np.nan, np.nan, bits, surprise > CHANCE_SIGMAS)
    line, order = pearson(x, y), pearson(ranks(x), ranks(y))
    surprises = (abs(line) * len(y) ** 0.5, abs(order) * len(y) ** 0.5, surprise)
    return Relation(len(y), line, order, xi(x, y, seed), bits, max(surprises) > CHANCE_SIGMAS)


def pearson(x: Values, y: Values) -> float:
    """Correlation of x and y [n]; 0 where one is constant."""
    x, y = _centred(x), _centred(y)
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return float(np.clip((x @ y) / spread, -1, 1)) if spread else 0.0


def _centred(x: Values) -> Values:
    """Values less their mean, the largest of which is 1: squares of them neither overflow nor vanish."""
    x = x / (np.abs(x).max() or 1.0)
    x = x - x.mean()
    largest: float = np.abs(x).max()
    return x / largest if largest > 1e-300 else np.zeros(len(x))


def ranks(x: Values) -> Values:
    """Ranks [n] from 1; ties share their mean."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    behind = np.cumsum(counts)
    means: Values = (behind - (counts - 1) / 2)[place]
    return means


def xi(x: Values, y: Values, seed: int = 0) -> float:
    """Chatterjee's ξ of y as a function of x, for ties in both; those in x are broken at random."""
    shuffled = np.random.default_rng(seed).permutation(len(x))
    order = shuffled[np.argsort(x[shuffled], kind="stable")]
    _, place, counts = np.unique(y, return_inverse=True, return_counts=True)
    below = np.cumsum(counts).astype(np.float64)  # how many labels are ≤ each distinct one
    least = len(y) - below + counts  # how many are ≥ it
    spread = 2 * (counts * least * (len(y) - least)).sum()
    return float(1 - len(y) * np.abs(np.diff(below[place[order]])).sum() / spread) if spread else 0.0


def places(x: Values) -> Codes:
    """Each value's place [n]: its own where there are few values, else one of up to 24 of about equal size."""
    most = int(np.clip((len(x) / ROWS_A_PLACE) ** 0.5, 2, MOST_PLACES))
    values, place = np.unique(x, return_inverse=True)
    if len(values) <= most:
        return place.astype(np.int64)
    edges = np.unique(np.quantile(x, np.linspace(0, 1, most + 1)[1:-1]))
    return np.searchsorted(edges, x, side="right").astype(np.int64)


def frequent(codes: Codes) -> Codes:
    """The most frequent values' places [n], all others in one."""
    most = int(np.clip((len(codes) / ROWS_A_PLACE) ** 0.5, 2, MOST_PLACES))
    _, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    new = np.empty(len(counts), np.int64)
    new[order] = np.minimum(np.arange(len(counts)), most - 1)
    return new[place]


def mutual_information(a: Codes, b: Codes, rows: int) -> tuple[float, float]:
    """Bits that two columns of places [n] share, less the bias; and how many standard deviations the raw figure is
    above what independence gives (the G-test, brought to a normal by Wilson and Hilferty's cube root)."""
    across = int(b.max()) + 1
    table = np.bincount(a * across + b, minlength=(int(a.max()) + 1) * across).reshape(-1, across).astype(np.float64)
    table = table[table.any(axis=1)][:, table.any(axis=0)]
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if not freedom:
        return 0.0, 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / rows
    seen = table > 0
    nats = float((table[seen] * np.log(table[seen] / expected[seen])).sum() / rows)
    spread = 2 / (9 * freedom)
    surprise = ((2 * rows * nats / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5 if nats > 0 else 0.0
    return max(0.0, (nats - freedom / (2 * rows)) / np.log(2)), float(surprise)
