"""What a baseline run found, and how it is told: summary.json, metrics.csv, the plot, the report, the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cabrank.config import BaselineConfig
from cabrank.console import counted
from cabrank.data.ledger import Account, reading_csv
from cabrank.errors import DivergedError
from cabrank.train.least_squares import LeastSquares, LinearModel
from cabrank.train.metrics import Metric, Step, long_format, to_csv
from cabrank.train.plots import loss_png
from cabrank.train.report import Picture, Report, Table, to_html
from cabrank.train.run_folder import RunFolder, cabrank_version

if TYPE_CHECKING:
    from cabrank.train.model import LinearRegression

GROWN = 1e6  # a loss that ends this many times as high as it began, and as the mean's, is a divergence cut short
EXACT = 1e-9  # an optimum at this share of the mean's error, or less, is off by rounding, and no measure of others
RECENT_STEPS = 25  # that train_rmse looks back on
HEADER = ("model", "RMSE", "MSE", "× optimum")
NOTES = (
    "RMSE is the root of the mean squared error over all rows, in the unit of the label: what a prediction is off by.",
    "The mean predictor always says the label's mean. A model that is not below it has learned nothing.",
    "The least-squares optimum is the best that any linear model of these columns can do, computed exactly in one pass "
    "over the data. SGD cannot be below it; how far it is above is what more steps, a smaller learning rate or "
    "standardised features could still win. What lies below the optimum needs other features or another model.",
    "The plot shows each batch's loss before its step. A zigzag between two levels means steps too long for the "
    "steepest direction: columns of large values (a year is about 2,000) make one far steeper than the others.",
)


@dataclass(frozen=True, kw_only=True)
class Results:
    """All of a run's findings. Models are judged on all rows, not on a batch."""

    config: BaselineConfig
    columns: Sequence[str]
    dropped: int
    reading: Sequence[Account]
    """Of each pass over the data, the reference pass first."""
    data_rows: int
    device: str
    steps: Sequence[Step]
    sgd: LinearModel
    mean: LinearModel
    optimum: LinearModel
    failure: DivergedError | None

    @classmethod
    def of(
        cls,
        config: BaselineConfig,
        columns: Sequence[str],
        dropped: int,
        reading: Sequence[Account],
        reference: LeastSquares,
        model: LinearRegression,
        steps: Sequence[Step],
        failure: DivergedError | None,
    ) -> Results:
        """Judges the trained model beside the two that it is compared with."""
        mean = reference.mean()
        return cls(
            config=config,
            columns=columns,
            dropped=dropped,
            reading=reading,
            data_rows=reference.rows,
            device=model.weight.device.type,
            steps=steps,
            sgd=reference.judge(*model.coefficients()),
            mean=mean,
            optimum=reference.optimum(),
            failure=failure or _grown(steps, mean.mse),
        )

    @property
    def summary(self) -> dict[str, object]:
        """`summary.json`: RMSEs in the label's unit; seconds an iteration are medians; rows are those consumed."""
        return {
            "job": self.config.verb,
            "status": "diverged" if self.failure else "done",
            "diverged": self.failure is not None,
            "data": self.config.data,
            "label": self.columns[0],
            "features": list(self.columns[1:]),
            "data_rows": self.data_rows,
            "dropped_rows": self.dropped,
            "rows": sum(step.rows for step in self.steps),
            "steps": len(self.steps),
            "epochs": self.steps[-1].epoch + 1,
            "seconds_per_iteration": statistics.median(step.seconds for step in self.steps),
            "wait_seconds_per_iteration": statistics.median(step.wait_seconds for step in self.steps),
            "sgd_rmse": self.sgd.rmse,
            "mean_rmse": self.mean.rmse,
            "optimum_rmse": self.optimum.rmse,
            "train_rmse": self._train_rmse(),
            "reading": sum(self.reading, Account()).facts(),
            "device": self.device,
            "dtype": self.config.dtype,
            "cabrank": cabrank_version(),
        }

    @property
    def table(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        """Title, header and rows of the comparison."""
        models = {"SGD": self.sgd, "mean": self.mean, "optimum": self.optimum}
        return f"Error on all {counted(self.data_rows, 'row')}", HEADER, [self._row(*item) for item in models.items()]

    def leave(self, folder: RunFolder, model: LinearRegression, features: bytes | None = None) -> str:
        """Makes all files, then writes the run's folder; returns the report's URI. `features`: the fitted spec."""
        from cabrank.train.model import to_safetensors

        references = {"mean": self.mean.mse, "optimum": self.optimum.mse}
        png = loss_png(self.steps, label=self.columns[0], references=references)
        files = {
            "metrics.csv": to_csv([*long_format(self.steps), *self._final_metrics()]),
            "reading.csv": reading_csv(self.reading),
            "model.safetensors": to_safetensors(model, self.columns[0], self.columns[1:]),
            "loss.png": png,
            "report.html": to_html(self._report(png)),
        }
        if features is not None:
            files["features.json"] = features
        folder.publish(self.config.verb, self.config.model_dump(), files, self.summary)
        return folder.uri + "report.html"

    def _report(self, png: bytes) -> Report:
        title, header, rows = self.table
        taken = counted(len(self.steps), "iteration")
        caption = f"Loss of {taken}, and what the mean and the best linear model reach on all rows."
        return Report(
            title=f"baseline: {self.columns[0]} by linear regression",
            summary=self._sentence(),
            alert=str(self.failure or ""),
            tables=(
                Table(title=title, header=header, rows=rows),
                Table(title="The run", header=("", ""), rows=self._figures()),
            ),
            pictures=(Picture(png=png, alt="Mean squared error of each iteration", caption=caption),),
            notes=NOTES,
            settings=self.config.model_dump(),
            footer=f"cabrank {cabrank_version()}",
        )

    def _sentence(self) -> str:
        sgd = f"After {counted(len(self.steps), 'iteration')} SGD is off by {_text(self.sgd.rmse)} (RMSE)"
        if self.failure:
            sgd = f"SGD diverged within {counted(len(self.steps), 'iteration')}"
        mean, optimum = _text(self.mean.rmse), _text(self.optimum.rmse)
        return f"{sgd}. Always predicting the mean is off by {mean}, the best linear model by {optimum}."

    def _figures(self) -> list[list[str]]:
        found = self.summary
        texts = {
            "rows in the data": found["data_rows"],
            "rows left out by --nulls": found["dropped_rows"],
            "rows trained on, repeats counted": found["rows"],
            "iterations": found["steps"],
            "passes begun over the data": found["epochs"],
            "seconds an iteration (median)": found["seconds_per_iteration"],
            "seconds waiting for its batch (median)": found["wait_seconds_per_iteration"],
            f"RMSE over the last {min(RECENT_STEPS, len(self.steps))} batches": found["train_rmse"],
            "device": found["device"],
            "precision": found["dtype"],
        }
        return [[name, _text(value) if isinstance(value, int | float) else str(value)] for name, value in texts.items()]

    def _row(self, name: str, model: LinearModel) -> list[str]:
        best = self.optimum.rmse
        ratio = model.rmse / best if best > EXACT * self.mean.rmse else math.nan
        return [name, _text(model.rmse), _text(model.mse), _text(ratio) if math.isfinite(ratio) else "—"]

    def _train_rmse(self) -> float:
        recent = self.steps[-RECENT_STEPS:]
        return math.sqrt(sum(step.rows * step.mse for step in recent) / sum(step.rows for step in recent))

    def _final_metrics(self) -> list[Metric]:
        last = self.steps[-1]
        models = {"sgd_rmse": self.sgd, "mean_rmse": self.mean, "optimum_rmse": self.optimum}
        return [Metric(last.step, last.epoch, "all", name, model.rmse) for name, model in models.items()]


def _grown(steps: Sequence[Step], mean_mse: float) -> DivergedError | None:
    """A loss that exploded, though not yet beyond what a float holds, is no success."""
    first, last = steps[0].mse, steps[-1].mse
    if last <= GROWN * max(first, mean_mse):
        return None
    return DivergedError(
        f"training diverged: the loss grew from {first:.6g} to {last:.6g} in {counted(len(steps), 'iteration')}. "
        "Clip the gradient (--gradient-norm 0.5), take a smaller --learning-rate, or standardise the features"
    )


def _text(value: float) -> str:
    """Five digits tell close models apart; counts in full."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.5g}" if math.isfinite(value) else "not finite"
