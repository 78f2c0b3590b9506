"""The pictures of a run's folder, as PNG bytes. Each on a figure of its own: no display, no shared state."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cabrank.train.metrics import Step

# Colours that eyes with any kind of colour blindness keep apart (Okabe and Ito, 2008)
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
LOG_SCALE_FROM = 20.0  # largest / smallest loss from which a linear axis would flatten the small ones
NOTHING = 1e-12  # of the largest first loss: below it a logarithmic axis would show rounding errors and little else


def loss_png(steps: Sequence[Step], *, label: str, references: Mapping[str, float]) -> bytes:
    """MSE of each iteration's batch, with a horizontal line for each of up to two `references` (name → MSE on all
    rows). Steps whose loss is not finite are left out, and lines that are too low for a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = [step for step in steps if math.isfinite(step.mse)]
    figure = Figure(figsize=(5.0, 3.9), dpi=220, layout="constrained")  # few inches: text that a phone can show
    axes = figure.add_subplot()
    height = _scale(axes, [step.mse for step in shown], list(references.values()))
    marker = "o" if len(shown) <= 60 else ""  # as long as dots can be told apart
    heights = [height(step.mse) for step in shown]
    axes.plot(
        [step.step for step in shown], heights, color=BLUE, lw=1.6, marker=marker, ms=3.5, label="SGD, each batch"
    )
    for (name, mse), (color, dash) in zip(references.items(), ((ORANGE, "--"), (GREEN, "-.")), strict=False):
        axes.axhline(height(mse), color=color, ls=dash, lw=1.6, label=f"{name}, all rows: {mse:,.4g}")
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"mean squared error\n({label}, squared)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", frameon=False)
    return png(figure)


def _scale(axes: Axes, losses: Sequence[float], references: Sequence[float]) -> Callable[[float], float]:
    """How high a value is drawn: itself, or its logarithm where values span decades. Not matplotlib's own logarithmic
    axis, which overflows on the losses of a diverged run: they end close to the largest float."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    floor = NOTHING * max(losses[:1], default=0.0)
    seen = [value for value in (*losses, *references) if value > floor]
    if not seen or max(seen) / LOG_SCALE_FROM < min(seen):
        return float
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda power, _: f"$10^{{{power:.0f}}}$"))
    return lambda value: math.log10(value) if value > floor else math.nan


def png(figure: Figure) -> bytes:
    """The figure as a PNG; the same figure gives the same bytes."""
    data = io.BytesIO()
    figure.savefig(data, format="png", metadata={"Software": None})  # else: matplotlib's version
    return data.getvalue()
