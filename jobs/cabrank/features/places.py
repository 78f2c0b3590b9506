"""Steps that put values in their places: bins and grid cells, categories, and their combinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from cabrank.errors import BadValueError, ConfigError
from cabrank.features.steps import EARTH_RADIUS_METRES, Facts, Matrix, Name, Names, Need, Step, box, check_outputs

MAX_BINS = 100_000
"""Bins of one axis: a map of the Earth in cells of 400 m has as many."""


def _placed(column: str, edges: Sequence[float], values: Matrix, outside: Counter[str]) -> npt.NDArray[np.int64]:
    """Bins of `values`, 0 … K - 1; K for those outside the edges. The last bin holds its upper edge."""
    bins = len(edges) - 1
    place = np.searchsorted(np.asarray(edges), values, side="right") - 1
    place[values == edges[-1]] = bins - 1
    strays = (place < 0) | (place >= bins)
    place[strays] = bins
    outside[column] += int(strays.sum())
    return place


def _one_hot(place: npt.NDArray[np.int64], size: int) -> Matrix:
    """[n, size] of zeros with a 1 in column place[i]; none in rows where that is `size` or more."""
    block = np.zeros((len(place), size))
    rows = np.flatnonzero(place < size)
    block[rows, place[rows]] = 1
    return block


class Binned(Step):
    """What bins and grids have in common: edges, and what becomes of a bin's number."""

    edges: tuple[Annotated[tuple[float, ...], Field(min_length=2)], ...] | None = None
    """Of each column, ascending; filled in from the data's bounding box."""
    encode: Literal["onehot", "index"]
    """A column a bin and one for values outside, or one column with the bin's number, the highest for outside."""

    @model_validator(mode="after")
    def _edges_fit(self) -> Self:
        for edges in self.edges or ():
            if list(edges) != sorted(set(edges)):
                raise ValueError(f"edges {list(edges)} must ascend")
        if self.edges is not None and len(self.edges) != len(self.inputs):
            raise ValueError(f"edges has {len(self.edges)} lists for {len(self.inputs)} columns: give one a column")
        return self

    @property
    def need(self) -> Need | None:
        """See `Step`."""
        return "moments" if self.edges is None else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """`<column>_bin`, or `<column>_bin0` … and `<column>_outside`."""
        if self.encode == "index":
            return tuple(f"{column}_bin" for column in self.inputs)
        sizes = [len(edges) - 1 for edges in self.edges or ()]
        check_outputs(sum(sizes) + len(sizes), self.inputs, "fewer bins, or encode = 'index'")
        return tuple(
            name
            for column, size in zip(self.inputs, sizes, strict=True)
            for name in (*(f"{column}_bin{number}" for number in range(size)), f"{column}_outside")
        )

    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:
        """See `Step`."""
        blocks = []
        for name, edges, values in zip(self.inputs, self.edges or (), columns, strict=True):
            place = _placed(name, edges, values, outside)
            blocks.append(place[:, None] if self.encode == "index" else _one_hot(place, len(edges)))
        return np.concatenate(blocks, axis=1).astype(np.float64, copy=False)


class Bins(Binned):
    """Equal bins over the data's bounding box."""

    kind: Literal["bins"]
    columns: Names
    bins: int = Field(10, ge=1, le=MAX_BINS)
    encode: Literal["onehot", "index"] = "onehot"

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Step`."""
        return self.columns

    def fit(self, facts: Sequence[Facts]) -> Self:
        """See `Step`."""
        boxes = [box(name, fact) for name, fact in zip(self.columns, facts, strict=True)]
        edges = tuple(tuple(np.linspace(low, high, self.bins + 1).tolist()) for low, high in boxes)
        return self.model_copy(update={"edges": edges})


class Grid(Binned):
    """Square cells on the map. 200 m is 1/8 mile (201 m), the unit in which taxis charge."""

    kind: Literal["grid"]
    latitude: Name
    longitude: Name
    metres: float = Field(200.0, gt=0)
    encode: Literal["onehot", "index"] = "index"

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Step`."""
        return self.latitude, self.longitude

    def fit(self, facts: Sequence[Facts]) -> Self:
        """See `Step`. The cells start at the box's south-west corner; the last ones may reach beyond it."""
        (south, north), (west, east) = (box(n, f) for n, f in zip(self.inputs, facts, strict=True))
        degree = np.radians(EARTH_RADIUS_METRES) * np.array([1, np.cos(np.radians((south + north) / 2))])  # in metres
        edges = []
        for low, high, step in ((south, north, self.metres / degree[0]), (west, east, self.metres / degree[1])):
            count = int(np.ceil((high - low) / step))
            if count > MAX_BINS:
                raise ConfigError(f"metres is {self.metres!r}: {count:,} cells in a row, and {MAX_BINS:,} are the most")
            edges.append(tuple((low + step * np.arange(count + 1)).tolist()))
        return self.model_copy(update={"edges": tuple(edges)})


class ByValue(Step):
    """What taking columns apart by their values needs: the values."""

    columns: Names
    categories: tuple[Annotated[tuple[float, ...], Field(min_length=1)], ...] | None = None
    """Values of each column, ascending; filled in from the data."""

    @model_validator(mode="after")
    def _categories_fit(self) -> Self:
        for values in self.categories or ():
            if list(values) != sorted(set(values)):
                raise ValueError(f"categories {list(values)} must ascend, each once")
        if self.categories is not None and len(self.categories) != len(self.columns):
            raise ValueError(f"categories has {len(self.categories)} lists for {len(self.columns)} columns")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Step`."""
        return self.columns

    @property
    def need(self) -> Need | None:
        """See `Step`."""
        return "values" if self.categories is None else None

    def fit(self, facts: Sequence[Facts]) -> Self:
        """See `Step`. `BadValueError` where a value is no whole number."""
        for name, fact in zip(self.columns, facts, strict=True):
            if (broken := next((value for value in fact.values if value != int(value)), None)) is not None:
                raise BadValueError(f"column {name!r} has the value {broken!r}, and {self._kind} takes whole numbers: "
                                    "take bins for it")  # fmt: skip
        return self.model_copy(update={"categories": tuple(fact.values for fact in facts)})

    @property
    def _kind(self) -> str:
        return str(getattr(self, "kind", "it"))

    def _place(self, index: int, values: Matrix, outside: Counter[str]) -> npt.NDArray[np.int64]:
        """Places of `values` in the categories of column `index`; their number for a value that is none of them."""
        known = np.asarray((self.categories or ())[index])
        place = np.searchsorted(known, values)
        place[place == len(known)] = 0
        strays = known[place] != values
        place[strays] = len(known)
        outside[self.columns[index]] += int(strays.sum())
        return place


class OneHot(ByValue):
    """A column for each value of small integer columns; all zeros for a value that was not there when it was fitted."""

    kind: Literal["onehot"]

    @property
    def outputs(self) -> tuple[str, ...]:
        """`<column>_<value>`."""
        pairs = zip(self.columns, self.categories or (), strict=True)
        names = tuple(f"{column}_{value:.17g}" for column, values in pairs for value in values)
        check_outputs(len(names), self.columns, "bins")
        return names

    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:
        """See `Step`."""
        sizes = [len(values) for values in self.categories or ()]
        places = [self._place(index, values, outside) for index, values in enumerate(columns)]
        return np.concatenate([_one_hot(p, size) for p, size in zip(places, sizes, strict=True)], axis=1)


class Cross(ByValue):
    """The combinations of the values of two or more columns (bins as an index, or small integers): a column for each,
    or one with the combination's number. A combination with a value that is new has a place of its own, the last."""

    kind: Literal["cross"]
    columns: Annotated[tuple[Name, ...], Field(min_length=2)]
    encode: Literal["onehot", "index"] = "onehot"

    @property
    def _size(self) -> int:
        return int(np.prod([len(values) for values in self.categories or ()], dtype=np.int64))

    @property
    def outputs(self) -> tuple[str, ...]:
        """`<a>_x_<b>`, or `<a>_x_<b>_<i>_<j>` for the values i and j, and `<a>_x_<b>_outside`."""
        name = "_x_".join(self.columns)
        if self.encode == "index":
            return (name,)
        check_outputs(self._size, self.columns, "fewer bins, or encode = 'index'")
        cells = [""]
        for values in self.categories or ():
            cells = [f"{cell}_{value:.17g}" for cell in cells for value in values]
        return (*(name + cell for cell in cells), f"{name}_outside")

    def apply(self, columns: Sequence[Matrix], outside: Counter[str]) -> Matrix:
        """See `Step`."""
        cell, strays = np.zeros(len(columns[0]), np.int64), np.zeros(len(columns[0]), bool)
        for index, values in enumerate(columns):
            size = len((self.categories or ())[index])
            place = self._place(index, values, outside)
            strays |= place == size
            cell = cell * size + np.minimum(place, size - 1)
        cell[strays] = self._size
        return cell[:, None].astype(np.float64) if self.encode == "index" else _one_hot(cell, self._size + 1)
