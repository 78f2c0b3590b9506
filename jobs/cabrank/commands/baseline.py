"""Job 2, baseline: linear regression on one device, beside the mean predictor and the best linear model there is.

parts ─► reference pass ─► model ─► loop ─► run's folder ─► table
         (mean, optimum)            (SGD)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from cabrank.commands.baseline_results import Results
from cabrank.config import BaselineConfig
from cabrank.console import counted, json_line, say, steps, table, track
from cabrank.errors import ConfigError, DivergedError
from cabrank.train.least_squares import LeastSquares
from cabrank.train.metrics import Step
from cabrank.train.run_folder import RunFolder

if TYPE_CHECKING:
    import torch

    from cabrank.data.dataset import ObjectStorageDataset
    from cabrank.features.engineer import Features
    from cabrank.train.model import LinearRegression

log = logging.getLogger("cabrank")


def run(config: BaselineConfig) -> None:
    """Trains, compares, leaves the run's folder and shows the result: a table on a terminal, else one JSON line. A run
    that diverges leaves its folder, too, and ends in `DivergedError`."""
    results, report = fit(config)
    if sys.stdout.isatty():
        table(*results.table)
        say(f"report: {report}")
    else:
        say(json_line({"event": "baseline", **results.summary, "report": report}))
    if results.failure:
        raise results.failure


def fit(config: BaselineConfig) -> tuple[Results, str]:
    """The job itself: what it found, and its report's URI. A former run in the folder stays until all is there."""
    folder = RunFolder(config.out, config.storage_options())
    device = choose_device(config.device)
    features = fitted_features(config)
    data = open_data(config, features)
    folder.claim(config.verb, config.model_dump())
    with folder.working():
        batches, reference = reference_pass(data, device)
        dropped = data.dropped
        model = start(config, len(data.columns) - 1).to(device)
        taken, failure = descend(config, model, batches)
        results = Results.of(config, data.columns, dropped, data.ledger.passes, reference, model, taken, failure)
    return results, results.leave(folder, model, features.spec.encoded() if features else None)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; CUDA asked for by name and absent is a `ConfigError`."""
    import torch

    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise ConfigError("--device is 'cuda', and torch finds no CUDA GPU here: use --device cpu, or auto")
    return torch.device("cuda" if found and name != "cpu" else "cpu")


def fitted_features(config: BaselineConfig) -> Features | None:
    """What --features asks for, fitted to this data where the spec has blanks."""
    from cabrank.features.fitting import fit_features

    if config.features is None:
        return None
    return fit_features(
        config.features,
        config.data,
        label=config.label,
        columns=config.columns,
        nulls=config.nulls,
        storage_options=config.storage_options(),
    )


def open_data(config: BaselineConfig, features: Features | None = None) -> ObjectStorageDataset:
    """All rows as batches [B, C], label first; says so where a batch could hold more rows than there are."""
    from cabrank.data.dataset import ObjectStorageDataset

    data = ObjectStorageDataset(
        config.data,
        storage_options=config.storage_options(),
        batch_size=config.batch_size,
        label=config.label,
        columns=config.columns,
        nulls=config.nulls,
        features=features,
        dtype=config.dtype,
        cache_dir=config.cache_dir,
        cache_bytes=config.cache_bytes,
        tail="uneven",
    )
    if len(data.columns) < 2:
        raise ConfigError(
            f"{config.data} has the column {data.columns[0]!r} only, as the label: linear regression needs a feature "
            "column beside it"
        )
    if data.rows < config.batch_size:
        rows = counted(data.rows, "row")
        log.info("--batch-size is %d and the data has %s: one batch an epoch", config.batch_size, rows)
    return data


def reference_pass(data: ObjectStorageDataset, device: torch.device) -> tuple[Iterable[torch.Tensor], LeastSquares]:
    """One epoch, folded into what answers for every linear model; and the batches to train on: the data, or where all
    of it was one batch, that batch, on the device: it is in memory anyway, and need not be read again."""
    reference, batches = LeastSquares(), cast("Iterable[torch.Tensor]", data)
    with track("reference pass", total=data.rows) as advance:
        for batch in batches:
            reference.add(batch.numpy())
            advance(len(batch))
    return [batch.to(device)] if len(data) == 1 else batches, reference


def start(config: BaselineConfig, features: int) -> LinearRegression:
    """The model before the first step."""
    import torch

    from cabrank.train.model import LinearRegression

    return LinearRegression(features, seed=config.seed, dtype=getattr(torch, config.dtype))


def descend(
    config: BaselineConfig, model: LinearRegression, batches: Iterable[torch.Tensor]
) -> tuple[list[Step], DivergedError | None]:
    """SGD, each step shown as it is taken: the steps, and what ended them early, if anything did."""
    import torch

    from cabrank.train.loop import train

    taken: list[Step] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    with steps(config.iterations) as show:

        def report(step: Step) -> None:
            taken.append(step)
            show(step)

        try:
            train(
                model, batches, optimizer, iterations=config.iterations, clip_norm=config.gradient_norm, report=report
            )
        except DivergedError as error:
            return taken, error
    return taken, None
