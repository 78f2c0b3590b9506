"""What engineered features are worth: the best linear model with them and without them, exactly, over all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cabrank.data.reading import read_blocks
from cabrank.features.audit import Audit
from cabrank.features.engineer import Engineered, Features
from cabrank.features.fitting import Training, fit
from cabrank.features.relations import Relation, relate
from cabrank.features.spec import Spec
from cabrank.nulls import NullPolicy
from cabrank.train.least_squares import LeastSquares

MADE_ROWS = 20_000  # of the sample, for the relations of what the spec makes: often hundreds of columns


@dataclass(frozen=True)
class Comparison:
    """Root mean squared errors in the label's unit, over `rows` rows with a number in every column."""

    rows: int
    mean: float
    raw: float
    raw_columns: int
    made: float
    made_columns: int
    relations: tuple[tuple[str, Relation], ...]
    """Of what the spec makes with the label, over the sample; the strongest first."""


def compare(spec: Spec, data: Training, found: Audit) -> Comparison:
    """Fits the spec unless it is fitted, and folds all rows into two exact solutions."""
    features = Features(spec) if spec.fitted_to else fit(spec, replace(data, advance=int))
    engineered = features.bind(data.schema.columns)
    raw, made = LeastSquares(), LeastSquares()
    for block in read_blocks(data.parts, data.store, data.schema, NullPolicy.of(data.nulls)):
        raw.add(block.parsed.matrix)
        made.add(engineered(block.parsed.matrix))
        data.advance(block.parsed.rows)
    return Comparison(
        rows=raw.rows,
        mean=raw.mean().rmse,
        raw=raw.optimum().rmse,
        raw_columns=len(data.schema.columns) - 1,
        made=made.optimum().rmse,
        made_columns=len(engineered.columns) - 1,
        relations=_relations(engineered, found),
    )


def _relations(engineered: Engineered, found: Audit) -> tuple[tuple[str, Relation], ...]:
    numbers = {found.label.name: found.label.numbers} | {c.profile.name: c.profile.numbers for c in found.candidates}
    matrix = np.stack([numbers[name] for name in engineered.source], axis=1)
    matrix = matrix[np.isfinite(matrix).all(axis=1)][:MADE_ROWS]
    columns = np.ascontiguousarray(engineered(matrix).T)  # [C', n]
    related = [
        (name, relate(values, values.view(np.int64), columns[0]))
        for name, values in zip(engineered.columns[1:], columns[1:], strict=True)
    ]
    return tuple(sorted(related, key=lambda pair: -pair[1].strength))
