"""The picture of `cabrank devices --bench`: time by size, one panel an operation, a mark where the GPU leads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cabrank.train.bench import Curve, wins_from
from cabrank.train.plots import BLUE, GREEN, ORANGE, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"cpu": BLUE, "cuda": ORANGE}


def bench_png(curves: Sequence[Curve], names: dict[str, str]) -> bytes:
    """Draws `curves`, those of one operation next to each other; `names` says what each device is called."""
    from matplotlib.figure import Figure

    panels = [list(group) for _, group in groupby(curves, key=lambda curve: curve.operation.name)]
    figure = Figure(figsize=(4.2 * len(panels), 4.4), dpi=150, layout="constrained")
    every_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, panel in zip(every_axes, panels, strict=True):
        _draw(axes, panel, names)
    every_axes[0].set_ylabel("seconds a call")
    handles, labels = every_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(names), frameon=False)
    return png(figure)


def _draw(axes: Axes, panel: Sequence[Curve], names: dict[str, str]) -> None:
    for curve in panel:
        sizes, seconds = list(curve.seconds), list(curve.seconds.values())
        axes.plot(sizes, seconds, color=COLORS[curve.device], marker="o", ms=3, lw=1.6, label=names[curve.device])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(panel[0].operation.what, fontsize=10)
    axes.set_xlabel("n")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    timed = {curve.device: curve.seconds for curve in panel}
    if "cuda" in timed:
        _mark(axes, wins_from(timed["cuda"], timed["cpu"]))


def _mark(axes: Axes, size: int | None) -> None:
    text = "the CPU is ahead throughout"
    if size is not None:
        axes.axvline(size, color=GREEN, ls=":", lw=1.6)
        text = f"the GPU is ahead\nfrom {size:,} on"
    axes.text(0.04, 0.96, text, transform=axes.transAxes, va="top", fontsize=9, color=GREEN)
