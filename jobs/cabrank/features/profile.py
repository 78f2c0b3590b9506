"""What a column holds, from its text: numbers or words, how many different ones, how they are spread and spelled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from cabrank.features.relations import Codes, Values
from cabrank.features.text import text_hash

Kind = Literal["decimal", "integer", "text", "empty"]

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
MOSTLY = 0.95  # a column of which this share are numbers is one of numbers with words in it, and not text
FENCE = 5.0  # interquartile ranges beyond the quartiles: 7 standard deviations of a normal distribution
LARGEST_EXACT = 2.0**53  # whole numbers beyond are not told apart by a float64


@dataclass(frozen=True)
class Profile:
    """One column of a sample of rows."""

    name: str
    kind: Kind
    rows: int
    """In the sample."""
    missing: float
    """Share of all rows, not only of the sample, that have no value."""
    words: tuple[str, ...]
    """The first few texts in a column of numbers that are none."""
    distinct: int
    rare: int
    """Distinct values that too few rows have."""
    codes: Codes = field(repr=False)
    """[n], equal for equal text."""
    numbers: Values = field(repr=False)
    """[n], NaN where there is none; all NaN for text."""
    zeros_first: bool
    """Whether a value has a leading zero, as codes have and amounts have not."""
    digits: int
    """That every value has; 0 where they differ, or are no whole numbers."""

    @property
    def numeric(self) -> bool:
        """Whether it is a column of numbers."""
        return self.kind in ("decimal", "integer")

    @property
    def valid(self) -> Any:
        """Which rows have a value: [n] of bool."""
        return np.isfinite(self.numbers) if self.numeric else self.codes >= 0

    @property
    def present(self) -> int:
        """Rows of the sample with a value."""
        return int(self.valid.sum())

    @property
    def constant(self) -> bool:
        """Whether all values are one."""
        return self.distinct == 1

    @property
    def found(self) -> Values:
        """The numbers that are there."""
        return self.numbers[np.isfinite(self.numbers)]

    @property
    def outliers(self) -> int:
        """Numbers of the sample that lie far outside of the middle half."""
        if not self.numeric or self.distinct < 10:
            return 0
        low, high = np.quantile(self.found, (0.25, 0.75))
        reach = FENCE * (high - low)
        return int(((self.found < low - reach) | (self.found > high + reach)).sum()) if reach else 0


def profile(name: str, column: Any, missing: float, rare: int) -> Profile:
    """Of a pyarrow column of strings. `rare`: a value that fewer rows have has too few examples."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.combine_chunks()
    here = ~np.asarray(text.is_null())
    match = pc.fill_null(pc.match_substring_regex(text, NUMBER), False)
    is_number = np.asarray(match)
    share = is_number.sum() / max(here.sum(), 1)
    numeric = share >= MOSTLY and here.any()
    numbers = np.full(len(text), np.nan)
    words: tuple[str, ...] = ()
    if numeric:
        numbers[is_number] = pc.cast(text.filter(pa.array(is_number)), pa.float64()).to_numpy(zero_copy_only=False)
        words = tuple(dict.fromkeys(text.filter(pa.array(here & ~is_number)).slice(0, 1000).to_pylist()))[:3]
    codes = np.where(here, (text_hash(text) >> np.uint64(1)).astype(np.int64), -1)
    values = numbers[np.isfinite(numbers)] if numeric else codes[here]
    _, counts = np.unique(values, return_counts=True)
    whole = numeric and bool((values == np.round(values)).all()) and bool((np.abs(values) < LARGEST_EXACT).all())
    kind: Kind = "empty" if not len(values) else "text" if not numeric else "integer" if whole else "decimal"
    zeros = bool(pc.any(pc.match_substring_regex(text, r"^0\d+$")).as_py()) if numeric else False
    return Profile(
        name=name,
        kind=kind,
        rows=len(text),
        missing=missing + (float((here & ~is_number).sum() / len(text)) if numeric else 0.0),
        words=words,
        distinct=len(counts),
        rare=int((counts < rare).sum()),
        codes=codes,
        numbers=numbers,
        zeros_first=zeros,
        digits=_digits(text) if kind == "integer" else 0,
    )


def _digits(text: Any) -> int:
    """How many digits every value has, where all have as many and nothing else."""
    import pyarrow.compute as pc

    plain = pc.all(pc.match_substring_regex(text, r"^\d+$")).as_py()
    span = pc.min_max(pc.utf8_length(text)).as_py()
    return int(span["min"]) if plain and span["min"] == span["max"] else 0
