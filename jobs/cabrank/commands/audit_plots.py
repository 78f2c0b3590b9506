"""The pictures of an audit's report, as PNG bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cabrank.features.audit import Candidate
from cabrank.features.profile import Profile
from cabrank.features.relations import places
from cabrank.features.rules import MISSING_SHARE
from cabrank.train.plots import BLUE, GREEN, ORANGE, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#8a939d"
MOST_ROWS, MOST_CURVES = 30, 12
LONGEST_NAME = 26


def strengths_png(candidates: Sequence[Candidate]) -> bytes:
    """|Pearson|, |Spearman| and ξ of each column, the strongest on top; grey where none is beyond chance."""
    shown = sorted(candidates, key=lambda c: -c.relation.strength)[:MOST_ROWS]
    figure, axes = _rows(len(shown), [c.profile.name for c in shown])
    marks = (("|Pearson|", "pearson", "o", BLUE), ("|Spearman|", "spearman", "D", ORANGE), ("ξ", "xi", "s", GREEN))
    for name, field, mark, color in marks:
        values = [abs(max(getattr(c.relation, field), 0 if field == "xi" else -1)) for c in shown]
        colors = [color if c.relation.beyond_chance else GREY for c in shown]
        axes.scatter(values, range(len(shown)), marker=mark, c=colors, s=34, zorder=3)
        axes.scatter([], [], marker=mark, c=color, s=34, label=name)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("strength")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    return png(figure)


def missing_png(columns: Sequence[Profile]) -> bytes:
    """Share of rows without a value, the largest on top."""
    shown = sorted(columns, key=lambda column: -column.missing)[:MOST_ROWS]
    figure, axes = _rows(len(shown), [column.name for column in shown])
    shares = [column.missing * 100 for column in shown]
    colors = [ORANGE if column.missing > MISSING_SHARE else BLUE for column in shown]
    axes.barh(range(len(shown)), shares, color=colors, height=0.6, zorder=3)
    axes.axvline(MISSING_SHARE * 100, color=GREY, ls="--", lw=1.4)
    axes.set_xlim(0, max(10.0, *(share * 1.08 for share in shares)))
    axes.set_xlabel("% of the rows")
    return png(figure)


def curves_png(candidates: Sequence[Candidate], label: Profile) -> bytes:
    """The label's mean along each of the most related columns."""
    from matplotlib.figure import Figure

    shown = sorted(candidates, key=lambda c: -(c.relation.bits if c.relation.rows else 0))[:MOST_CURVES]
    across = min(2, len(shown))  # few and wide: text that a phone can show
    down = -(-len(shown) // across)
    figure = Figure(figsize=(2.7 * across, 1.9 * down + 0.2), dpi=200, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axes, candidate in zip(panels, shown, strict=False):
        _curve(axes, candidate.profile, label)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    return png(figure)


def _curve(axes: Axes, column: Profile, label: Profile) -> None:
    both = np.isfinite(column.numbers) & np.isfinite(label.numbers)
    x, y = column.numbers[both], label.numbers[both]
    _, place, counts = np.unique(places(x), return_inverse=True, return_counts=True)
    axes.axhline(float(y.mean()), color=GREY, lw=1)
    means = np.bincount(place, y) / counts
    axes.plot(np.bincount(place, x) / counts, means, color=BLUE, marker="o", ms=3, lw=1.4)
    axes.set_title(_short(column.name), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.locator_params(axis="x", nbins=4)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _rows(count: int, names: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with a named row for each of `count` things, the first on top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 0.9 + 0.3 * max(count, 2)), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(count), [_short(name) for name in names])
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _short(name: str) -> str:
    """Cut in the middle: names that belong together differ at either end."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"
