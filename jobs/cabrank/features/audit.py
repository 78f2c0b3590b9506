"""Five questions to ask of each column before a model learns from it, and the answers that data can give.

1  Is it related to the label?
2  Is it known before a prediction is asked for?
3  Are there enough examples of it?
4  Is it a number with a meaningful scale?
5  Does an expert know more?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabrank.errors import ConfigError, SchemaError
from cabrank.features.profile import Profile, profile
from cabrank.features.relations import NOTHING, Relation, Values, relate
from cabrank.features.rules import Finding, Look, column_findings, table_findings
from cabrank.features.survey import Survey

QUESTIONS = (
    "Is it related to the label?",
    "Is it known before a prediction is asked for?",
    "Are there enough examples of it?",
    "Is it a number with a meaningful scale?",
    "Does an expert know more?",
)
NOT_CAUSE = (
    "Correlation is not cause: a related column may follow from the label, or both from something else. Ask how it "
    "comes about before a model relies on it."
)


@dataclass(frozen=True)
class Candidate:
    """One column beside the label."""

    profile: Profile
    relation: Relation


@dataclass(frozen=True)
class Audit:
    """All that was found. `findings` are what to look into, `advice` what to do with columns that are sound."""

    label: Profile
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]
    advice: tuple[Finding, ...]
    rows: int
    sample_rows: int
    test_rows: int | None
    repeated: float
    """Share of the rows that stand in the data more than once."""
    shared: float | None
    """Share of the test set's rows that the data holds, too."""
    unique: float
    """Share of the sample's rows whose features no other row of it has."""
    unseen: float | None
    """Share of the test sample's rows whose features the sample does not have."""

    def of(self, name: str) -> list[Finding]:
        """The findings about one column."""
        return [finding for finding in self.findings if finding.column == name]


def audit(
    data: Survey,
    *,
    label: str | None = None,
    test: Survey | None = None,
    known_late: Sequence[str] = (),
    rare: int = 5,
    seed: int = 0,
) -> Audit:
    """Judges each column. `ConfigError` for a name that is no column, `SchemaError` for a test set that lacks one."""
    label = data.names[0] if label is None else label
    for name in (label, *known_late):
        if name not in data.names:
            raise ConfigError(f"there is no column {name!r}; the columns are: {', '.join(data.names)}")
    profiles = {name: _profile(data, name, rare) for name in data.names}
    others = {name: _profile(test, name, rare) for name in data.names} if test else {}
    target, y = profiles[label], label_values(profiles[label])
    candidates = tuple(
        Candidate(found, relation_to(found, y, seed)) for name, found in profiles.items() if name != label
    )
    looks = [
        Look(c.profile, c.relation, y, c.profile.name in known_late, others.get(c.profile.name)) for c in candidates
    ]
    found = [finding for look in looks for finding in column_findings(look, rare)]
    sound = [c.profile for c in candidates if not {"identifier", "leak", "constant"} & _codes(found, c.profile.name)]
    unique, unseen = _combinations(sound, [others[p.name] for p in sound] if test else None)
    shared = test.sketch.shared_with(data.sketch) if test else None
    found += table_findings(target, data.sketch.repeated, shared, unique, unseen, sound)
    return Audit(
        label=target,
        candidates=candidates,
        findings=tuple(sorted((f for f in found if f.serious), key=lambda f: f.question)),
        advice=tuple(sorted((f for f in found if not f.serious), key=lambda f: f.question)),
        rows=data.rows,
        sample_rows=len(data.sample),
        test_rows=test.rows if test else None,
        repeated=data.sketch.repeated,
        shared=shared,
        unique=unique,
        unseen=unseen,
    )


def check_test(train: Sequence[str], test: Sequence[str], where: str) -> None:
    """`SchemaError` where the test set has not the data's columns."""
    missing = [name for name in train if name not in test]
    extra = [name for name in test if name not in train]
    if missing or extra:
        faults = [f"lacks the column {', '.join(map(repr, missing))}"] if missing else []
        faults += [f"has a column {', '.join(map(repr, extra))} that the data has not"] if extra else []
        raise SchemaError(f"{where}: the test set {' and '.join(faults)}; both need the same columns")


def label_values(label: Profile) -> Values:
    """The label as numbers [n], NaN where it is missing; classes by name get numbers in their order."""
    if label.numeric:
        return label.numbers
    _, place = np.unique(label.codes, return_inverse=True)
    return np.where(label.codes >= 0, place.astype(np.float64), np.nan)


def relation_to(column: Profile, y: Values, seed: int) -> Relation:
    """Of a column with the label `y` [n], over the rows that have both."""
    both = column.valid & np.isfinite(y)
    if both.sum() < 3:
        return NOTHING
    return relate(column.numbers[both] if column.numeric else None, column.codes[both], y[both], seed)


def _profile(data: Survey, name: str, rare: int) -> Profile:
    return profile(name, data.sample[name], data.missing[name] / data.rows, rare)


def _codes(findings: Sequence[Finding], name: str) -> set[str]:
    return {finding.code for finding in findings if finding.column == name}


def _combinations(train: Sequence[Profile], test: Sequence[Profile] | None) -> tuple[float, float | None]:
    """Shares of rows whose features stand once in train, and whose features stand in test and not in train."""
    if not train:
        return 0.0, None if test is None else 0.0
    rows = _joined(train)
    _, counts = np.unique(rows, return_counts=True)
    unseen = None if test is None else float((~np.isin(_joined(test), rows)).mean())
    return float((counts == 1).sum() / len(rows)), unseen


def _joined(columns: Sequence[Profile]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """One hash [n] of all columns' values."""
    from cabrank.features.text import mix

    total = np.zeros(columns[0].rows, np.uint64)
    for number, column in enumerate(columns):
        total += mix(column.codes.astype(np.uint64) + np.uint64(number + 1))
    return total
