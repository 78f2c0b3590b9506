"""Steps that compute with values: distances, angles of what comes round again, and scaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from cabrank.features.steps import EARTH_RADIUS_METRES, Facts, Matrix, Name, Names, Need, Step, box

EARTH_RADIUS_MILES = EARTH_RADIUS_METRES / 1_609.344


class Cyclic(Step):
    """Sine and cosine of columns that start over, so that hour 23 lies beside hour 0."""

    kind: Literal["cyclic"]
    columns: Names
    period: float = Field(gt=0)

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Step`."""
        return self.columns

    @property
    def outputs(self) -> tuple[str, ...]:
        """`<column>_sin` and `<column>_cos`."""
        return tuple(f"{column}_{part}" for column in self.columns for part in ("sin", "cos"))

    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:  # noqa: ARG002
        """See `Step`."""
        angles = [values * (2 * np.pi / self.period) for values in columns]
        return np.stack([turn(angle) for angle in angles for turn in (np.sin, np.cos)], axis=1)


class Distance(Step):
    """Miles between two places given in degrees: over the globe, and along its meridians and parallels."""

    kind: Literal["distance"]
    origin: tuple[Name, Name]
    """Names of latitude and longitude."""
    destination: tuple[Name, Name]
    how: Annotated[tuple[Literal["haversine", "manhattan"], ...], Field(min_length=1)] = ("haversine", "manhattan")
    name: str = ""
    """Put before the outputs' names, where a spec has several distances."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Step`."""
        return (*self.origin, *self.destination)

    @property
    def outputs(self) -> tuple[str, ...]:
        """`haversine_miles` and `manhattan_miles`."""
        return tuple(f"{self.name}{'_' if self.name else ''}{how}_miles" for how in self.how)

    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:  # noqa: ARG002
        """See `Step`."""
        radians = [np.radians(values) for values in columns]
        ways = {"haversine": haversine_miles, "manhattan": manhattan_miles}
        return np.stack([ways[how](*radians) for how in self.how], axis=1)


def haversine_miles(lat1: Matrix, lon1: Matrix, lat2: Matrix, lon2: Matrix) -> Matrix:
    """Great-circle distance of places in radians, [n] each (Sinnott 1984): exact for short ways, too."""
    north, east = np.sin((lat2 - lat1) / 2), np.sin((lon2 - lon1) / 2)
    half_chord = north * north + np.cos(lat1) * np.cos(lat2) * east * east
    miles: Matrix = 2 * EARTH_RADIUS_MILES * np.arcsin(np.sqrt(np.minimum(half_chord, 1)))
    return miles


def manhattan_miles(lat1: Matrix, lon1: Matrix, lat2: Matrix, lon2: Matrix) -> Matrix:
    """North and then east, [n] from radians; the parallel is the one half way."""
    miles: Matrix = EARTH_RADIUS_MILES * (np.abs(lat2 - lat1) + np.cos((lat1 + lat2) / 2) * np.abs(lon2 - lon1))
    return miles


class Scaled(Step):
    """What standardising and min-max have in common: value → (value - shift) / scale."""

    columns: Names
    shift: tuple[float, ...] | None = None
    scale: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """One a column; filled in from the data's statistics."""

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        for name, values in (("shift", self.shift), ("scale", self.scale)):
            if values is not None and len(values) != len(self.columns):
                raise ValueError(f"{name} has {len(values)} numbers for {len(self.columns)} columns: give one a column")
        if (self.shift is None) != (self.scale is None):
            raise ValueError("shift and scale belong together: give both, or neither")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Step`."""
        return self.columns

    @property
    def need(self) -> Need | None:
        """See `Step`."""
        return "moments" if self.shift is None else None

    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:  # noqa: ARG002
        """See `Step`."""
        scaling = zip(columns, self.shift or (), self.scale or (), strict=True)
        return np.stack([(values - shift) / scale for values, shift, scale in scaling], axis=1)

    def _filled(self, shift: Sequence[float], scale: Sequence[float]) -> Self:
        return self.model_copy(update={"shift": tuple(shift), "scale": tuple(scale)})


class Standardise(Scaled):
    """Mean 0 and standard deviation 1 (the sample's, as `.meta/stats` has it)."""

    kind: Literal["standardise"]

    @property
    def outputs(self) -> tuple[str, ...]:
        """`<column>_standardised`."""
        return tuple(f"{column}_standardised" for column in self.columns)

    def fit(self, facts: Sequence[Facts]) -> Self:
        """See `Step`."""
        for name, fact in zip(self.columns, facts, strict=True):
            box(name, fact)
        return self._filled([fact.mean for fact in facts], [fact.stddev for fact in facts])


class MinMax(Scaled):
    """0 for the least value and 1 for the largest."""

    kind: Literal["minmax"]

    @property
    def outputs(self) -> tuple[str, ...]:
        """`<column>_minmax`."""
        return tuple(f"{column}_minmax" for column in self.columns)

    def fit(self, facts: Sequence[Facts]) -> Self:
        """See `Step`."""
        boxes = [box(name, fact) for name, fact in zip(self.columns, facts, strict=True)]
        return self._filled([low for low, _ in boxes], [high - low for low, high in boxes])
