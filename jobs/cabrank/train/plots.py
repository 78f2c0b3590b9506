"""The pictures of a run's folder, as PNG bytes. Each on a figure of its own: no display, no shared state."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cabrank.train.metrics import Step

# Colours that eyes with any kind of colour blindness keep apart (Okabe and Ito, 2008)
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
LOG_SCALE_FROM = 20.0  # largest / smallest value from which a linear axis would flatten the small ones


def loss_png(steps: Sequence[Step], *, label: str, references: dict[str, float]) -> bytes:
    """MSE of each iteration's batch, with a horizontal line for each of up to two `references` (name → MSE on
    all rows). Steps whose loss is not finite are left out."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = [step for step in steps if math.isfinite(step.mse)]
    values = [step.mse for step in shown]
    figure = Figure(
        figsize=(5.6, 4.2), dpi=200, layout="constrained"
    )  # small in inches: its text is readable on a phone
    axes = figure.add_subplot()
    axes.plot(
        [step.step for step in shown],
        values,
        color=BLUE,
        lw=1.6,
        marker=_marker(shown),
        ms=3.5,
        label="SGD, each batch",
    )
    for (name, value), (color, dash) in zip(references.items(), ((ORANGE, "--"), (GREEN, "-.")), strict=False):
        axes.axhline(value, color=color, ls=dash, lw=1.6, label=f"{name}, all rows: {value:,.4g}")
    _scale(axes, [*values, *references.values()])
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"mean squared error\n({label}, squared)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", frameon=False)
    return png(figure)


def _marker(steps: Sequence[Step]) -> str:
    """A dot a step, as long as dots can be told apart."""
    return "o" if len(steps) <= 60 else ""


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis where values span decades, kept inside what a float can hold: a diverged run comes close."""
    logs = [math.log10(value) for value in values if value > 0]
    if not logs or max(logs) - min(logs) < math.log10(LOG_SCALE_FROM):
        return
    margin = 0.05 * (max(logs) - min(logs))
    axes.set_ylim(10.0 ** max(min(logs) - margin, -307), 10.0 ** min(max(logs) + margin, 308))
    axes.set_yscale("log")


def png(figure: Figure) -> bytes:
    """The figure as a PNG; the same figure gives the same bytes."""
    data = io.BytesIO()
    figure.savefig(data, format="png", metadata={"Software": None})  # else: matplotlib's version
    return data.getvalue()
