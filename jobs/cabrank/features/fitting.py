"""Filling in a spec's blanks from data that does not fit in memory: from `.meta` where it says enough, else in a pass.

Steps that read other steps' outputs wait for them: one pass fits all steps whose inputs can be had. Fit on the training
data, keep the result, and use it everywhere else, so that nothing of a test set leaks into training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cabrank.data.contracts import read_statistics
from cabrank.data.listing import Part, list_parts
from cabrank.data.metadata import folder_parts, known_records, read_counts, read_plan
from cabrank.data.parse import Schema
from cabrank.data.reading import part_schema, read_blocks
from cabrank.data.statistics import Moments
from cabrank.errors import ConfigError, MetadataError, NoDataError
from cabrank.features.engineer import Engineered, Features, check_input, check_keep, unread
from cabrank.features.spec import Spec
from cabrank.features.steps import MAX_VALUES, Facts, Matrix, Step
from cabrank.nulls import NullPolicy
from cabrank.store import StorageOptions, Store, open_store

log = logging.getLogger("cabrank")
STATISTICS = ("count", "mean", "stddev", "min", "max")


def fit_features(
    spec: str | Spec,
    glob: str,
    *,
    label: str | None = None,
    columns: str | Sequence[str] | None = None,
    nulls: str = "raise",
    storage_options: StorageOptions | None = None,
) -> Features:
    """Fits a spec (a file, a preset's name, or a `Spec`) to the parts under `glob`; the other words as for
    `ObjectStorageDataset`. `Features.spec.encoded()` is the JSON to keep."""
    spec = Spec.read(spec, storage_options) if isinstance(spec, str) else spec
    store = open_store(glob, storage_options)
    parts = list_parts(glob, store)
    schema = part_schema(parts, store, label, columns)
    return fit(spec, Training(glob, parts, store, schema, nulls))


@dataclass(frozen=True)
class Training:
    """The data to fit to."""

    name: str
    parts: Sequence[Part]
    store: Store
    schema: Schema
    nulls: str
    advance: Callable[[int], object] = int
    """Told of each block's rows as a pass goes through them."""


@dataclass
class Known:
    """Facts of columns, and the rows that they come from."""

    facts: dict[str, Facts] = field(default_factory=dict)
    rows: int = 0

    def add(self, found: Gathered, names: Sequence[str]) -> None:
        """Takes in what a pass found about the columns `names`; `NoDataError` where it saw no row."""
        moments = Moments.pooled(found.moments)
        if not moments.count:
            raise NoDataError("there is no row to fit features to: the data is empty, or nulls=drop left all rows out")
        for name, fact in _facts(names, moments).items():
            self.facts[name] = replace(fact, values=tuple(sorted(found.values.get(name, ()))))
        self.rows = moments.count


@dataclass
class Gathered:
    """What one pass finds about some columns."""

    moments: list[Moments] = field(default_factory=list)
    values: dict[str, set[float]] = field(default_factory=dict)

    def add(self, columns: dict[str, Matrix], by_value: Iterable[str]) -> None:
        """Takes one block's columns [n] in; `ConfigError` for one of `by_value` that has too many values."""
        self.moments.append(Moments.of(np.stack(list(columns.values()), axis=1)))
        for name in by_value:
            seen = self.values.setdefault(name, set())
            seen.update(np.unique(columns[name]).tolist())
            if len(seen) > MAX_VALUES:
                raise ConfigError(f"column {name!r} has more than {MAX_VALUES:,} distinct values: too many to take "
                                  "apart by value; take bins for it")  # fmt: skip


def fit(spec: Spec, data: Training) -> Features:
    """The spec with every blank filled in, one that was fitted before as it is; `ConfigError` for an unknown column, a
    constant one where a step needs an extent, or more values than can be told apart."""
    columns = data.schema.columns
    if spec.fitted_to is not None:
        Features(spec).bind(columns)
        return Features(spec)
    _check_inputs(spec, columns)
    steps: list[Step] = list(spec.step)
    known = metadata_facts(data)
    while any(step.need for step in steps):
        usable, ready = _split(steps, columns)
        names = list(dict.fromkeys(name for step in ready for name in step.inputs))
        by_value = {name for step in ready if step.need == "values" for name in step.inputs}
        if by_value or not known.facts.keys() >= set(names):
            known.add(_pass(data, Engineered(columns, (), usable), names, by_value), names)
        filled = {id(step): step.fit([known.facts[name] for name in step.inputs]) for step in ready}
        steps = [filled.get(id(step), step) for step in steps]
    keep = unread(spec, columns[1:]) if spec.keep is None else spec.keep
    news = {"step": tuple(steps), "keep": keep, "fitted_to": data.name, "fitted_rows": known.rows}
    features = Features(spec.model_copy(update=news))
    features.bind(columns)  # finds what is wrong with the names
    return features


def _check_inputs(spec: Spec, columns: Sequence[str]) -> None:
    """`ConfigError`, before any row is read, for an input that neither the data nor a step before it can give."""
    known = list(columns[1:])
    check_keep(spec.keep or (), known, ConfigError)
    for number, step in enumerate(spec.step, 1):
        blank = tuple(f"{name}_" for before in spec.step[: number - 1] if before.need for name in before.inputs)
        for name in step.inputs:
            if name == columns[0] or not name.startswith(blank or ("\0",)):  # what a blank step makes is not known yet
                check_input(name, f"step {number}", known, columns[0], ConfigError)
        known += [] if step.need else step.outputs


def _split(steps: Sequence[Step], columns: Sequence[str]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps that can be applied already, and those that can be fitted now: all others wait for these."""
    known = set(columns[1:])
    usable: list[Step] = []
    ready: list[Step] = []
    for number, step in enumerate(steps, 1):
        if not known.issuperset(step.inputs):
            waiting = [before for before in ready if before.need]
            for name in step.inputs if not waiting else ():
                check_input(name, f"step {number}", sorted(known), columns[0], ConfigError)
            continue
        (ready if step.need else usable).append(step)
        known.update(() if step.need else step.outputs)
    return tuple(usable), tuple(ready)


def _pass(data: Training, front: Engineered, names: Sequence[str], by_value: set[str]) -> Gathered:
    """One pass over the data: moments of the columns `names`, the values of those `by_value`."""
    found = Gathered()
    for block in read_blocks(data.parts, data.store, data.schema, NullPolicy.of(data.nulls)):
        if len(rows := block.parsed.matrix):
            found.add(front.named(rows, names), by_value)
        data.advance(block.parsed.rows)
    return found


# ---- what .meta knows ----


def metadata_facts(data: Training) -> Known:
    """Facts of the raw columns from the plan file beside the parts, or from another job's statistics; nothing where
    these do not describe exactly the parts that were asked for."""
    folders = {part.folder for part in data.parts}
    if len(folders) > 1:
        return Known()
    (folder,) = folders
    try:
        plan = read_plan(folder, data.store)
        if plan is None:
            return _foreign_facts(folder, data)
    except MetadataError as error:
        log.warning("%s; reading the data instead", error)
        return Known()
    records = known_records(plan, data.parts, data.nulls)
    if records.keys() != {part.uri for part in data.parts}:
        return Known()
    moments = Moments.pooled([records[part.uri].statistics for part in data.parts])
    return Known(_facts(plan.columns, moments), moments.count) if moments.count else Known()


def _foreign_facts(folder: str, data: Training) -> Known:
    """From `.meta/stats` as Spark jobs write it: believed where its count is that of the parts, all of the folder."""
    found = read_statistics(folder, data.parts, data.store)
    whole = {part.uri for part in folder_parts(folder, data.store) if part.size} == {part.uri for part in data.parts}
    counts = read_counts(data.parts, data.store) if found and whole else {}
    if found is None or not counts or len(counts) != len(data.parts):
        return Known()
    rows = sum(counts.values())
    full = {name: row for name, row in found.values.items() if set(STATISTICS) <= row.keys() and row["count"] == rows}
    return Known({n: Facts(r["mean"], r["stddev"], r["min"], r["max"]) for n, r in full.items()}, rows)


def _facts(names: Sequence[str], moments: Moments) -> dict[str, Facts]:
    stddev = moments.stddev or (0.0,) * len(names)
    columns = zip(names, moments.mean, stddev, moments.min, moments.max, strict=True)
    return {name: Facts(mean, stddev, low, high) for name, mean, stddev, low, high in columns}
