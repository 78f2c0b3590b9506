"""The tables: million rows a second, and the ratios that are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Medians = Mapping[tuple[str, str, int], tuple[int, float]]
"""(rows, median seconds) by place, label, batch size."""


@dataclass(frozen=True)
class Ratio:
    """One figure against what is wanted of it; nothing where a part of it was not measured."""

    what: str
    value: float | None
    wanted: float
    least: bool = True
    unit: str = ""

    def __str__(self) -> str:
        sign = "≥" if self.least else "≤"
        if self.value is None:
            return f"{self.what:70} {'—':>8}         {sign} {self.wanted:g}{self.unit}"
        met = self.value >= self.wanted if self.least else self.value <= self.wanted
        shown = f"{self.value:8.3f}{self.unit:2}"
        return f"{self.what:70} {shown} {'' if met else 'short':5} {sign} {self.wanted:g}{self.unit}"


def rates(medians: Medians, place: str, sizes: list[int]) -> Iterator[str]:
    """A line a label, a column a batch size."""
    yield f"{place + ', million rows a second':34}" + "".join(f"{'2^' + str(b.bit_length() - 1):>9}" for b in sizes)
    for label in dict.fromkeys(label for where, label, _ in medians if where == place and label not in FIRSTS):
        cells = []
        for size in sizes:
            rows, seconds = medians.get((place, label, size), (0, 0.0))
            cells.append(f"{rows / seconds / 1e6:9.2f}" if seconds else f"{'—':>9}")
        yield f"  {label:32}" + "".join(cells)


class Ratios:
    """Those of one place and batch size."""

    def __init__(self, medians: Medians, place: str, size: int) -> None:
        self.medians, self.place, self.size = medians, place, size

    def seconds(self, label: str, place: str | None = None) -> float | None:
        """The median."""
        found = self.medians.get((place or self.place, label, self.size))
        return found[1] if found else None

    def rate(self, label: str, place: str | None = None) -> float | None:
        """Rows a second."""
        found = self.medians.get((place or self.place, label, self.size))
        return found[0] / found[1] if found else None

    def best(self, *labels: str) -> float | None:
        """The fastest that was measured."""
        return max((rate for label in labels if (rate := self.rate(label))), default=None)

    def lines(self) -> Iterator[Ratio]:
        """What issue and README promise."""
        batch = f"2^{self.size.bit_length() - 1}, {self.place}:"
        remote = self.place != "local"
        ours, cached = self.rate("cabrank"), self.rate("cabrank, from its cache")
        parse = self.best("bare pyarrow, parse alone", *([] if remote else POLARS))
        bare = self.best("bare pyarrow", *POLARS)
        if remote:
            gets = self.rate("bare GETs")
            slower = min(gets, parse) if gets and parse else None
            yield Ratio(f"{batch} first epoch / slower of bare GETs and bare parse", over(ours, slower), 0.9)
        else:
            yield Ratio(f"{batch} first epoch / faster of bare pyarrow and polars", over(ours, bare), 0.9)
        if self.size == 1 << 12:
            yield Ratio(f"{batch} first epoch / the original (kaen)", over(ours, self.rate("kaen")), 30)
        limit = 0.3 if remote else 0.1
        for label in FIRSTS:
            yield Ratio(f"{batch} {label}", self.seconds(label), limit, least=False, unit=" s")
        copy = self.rate("memory copy")
        yield Ratio(f"{batch} second epoch / memory copy", over(cached, copy), 0.5)
        copied = self.rate("cabrank, from its cache, copied")
        yield Ratio(f"{batch} second epoch, each batch copied / memory copy", over(copied, copy), 0.5)
        litdata = self.rate("LitData, second epoch", "local")
        yield Ratio(f"{batch} second epoch / LitData's, from converted local blocks", over(cached, litdata), 1)
        litdata = self.rate("LitData, second epoch, copied", "local")
        yield Ratio(f"{batch} second epoch / LitData's, each batch copied in both", over(copied, litdata), 1)


POLARS = ("bare polars", "bare polars, part by part")
FIRSTS = ("first batch", "first batch, dataset made too")


def over(one: float | None, other: float | None) -> float | None:
    """The ratio, where both are known."""
    return one / other if one and other else None
