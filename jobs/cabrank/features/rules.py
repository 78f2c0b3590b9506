"""The rules of the audit: each looks at one column, or at the table, and says what is wrong, if anything is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cabrank.features.profile import Profile
from cabrank.features.relations import Relation, Values

MISSING_SHARE = 0.05
NEARLY = 0.99  # of a coefficient's largest value, or of the rows that a rule must hold for
FEW = 100  # rows; with fewer, a rule about all of them says nothing
CODE_NAME = re.compile(
    r"(?:^|_)(?:zip|postal|postcode|plz|fips|phone|ssn|isbn|sku|iata|code|id|uuid|key)(?:_|$)", re.IGNORECASE
)
YEARS = (1900, 2100)


@dataclass(frozen=True)
class Finding:
    """One sentence about a column (or the table, then `column` is empty), under one of the five questions."""

    column: str
    question: int
    code: str
    text: str
    serious: bool = True
    """Whether it should be looked into; else it is advice."""


@dataclass(frozen=True)
class Look:
    """What the rules of one column see."""

    column: Profile
    relation: Relation
    y: Values
    """The label [n], NaN where it is missing."""
    late: bool
    test: Profile | None


def column_findings(look: Look, rare: int) -> Iterator[Finding]:
    """Everything that the rules say about one column."""
    column, name = look.column, look.column.name
    if column.kind == "empty":
        yield Finding(name, 3, "missing", "is empty in every row")
        return
    if look.late:
        yield Finding(name, 2, "late", "was declared as known only after the prediction is needed; leave it out")
    if column.missing > MISSING_SHARE:
        yield Finding(name, 3, "missing", f"{column.missing:.1%} of the rows have no value (more than "
                                          f"{MISSING_SHARE:.0%}); fill it, or leave it out")  # fmt: skip
    yield from _follows_label(look)
    if column.constant:
        yield Finding(name, 4, "constant", "has one value in all rows that have one; it says nothing")
        return
    if _identifies(column):
        yield Finding(name, 4, "identifier", f"all {column.present:,} values differ: it names rows and says nothing of "
                                             "the next one; leave it out")  # fmt: skip
        return
    if leak := _leak(look):
        yield Finding(name, 2, "leak", leak + "; is it made from the label?")
    elif not look.relation.beyond_chance and look.relation.rows >= FEW:
        yield Finding(name, 1, "unrelated", "by itself it tells nothing of the label: no measure is beyond chance")
    yield from (finding for finding in _scale(column) if finding.serious or not leak)
    yield from _examples(look, rare)


def _identifies(column: Profile) -> bool:
    if column.kind not in ("integer", "text") or column.present < FEW:
        return False
    return column.distinct >= (0.98 if column.kind == "text" else 1.0) * column.present


def _leak(look: Look) -> str:
    relation = look.relation
    if max(abs(np.nan_to_num(relation.pearson)), abs(np.nan_to_num(relation.spearman))) >= NEARLY:
        return f"is nearly the label itself (Pearson {relation.pearson:.4f}, Spearman {relation.spearman:.4f})"
    if (
        np.nan_to_num(relation.xi) >= NEARLY - 0.01
    ):  # with n rows ξ of a function is 3 / n short of 1, and more with ties
        return f"determines the label nearly always (ξ {relation.xi:.3f})"
    if _determines(look):
        return "determines the label nearly always: rows of equal value have equal labels"
    return ""


def _determines(look: Look) -> bool:
    """Whether rows with the same value have the same label, where most values stand in several rows."""
    both = look.column.valid & np.isfinite(look.y)
    _, place, counts = np.unique(look.column.codes[both], return_inverse=True, return_counts=True)
    several = counts[place] > 1
    if several.sum() < max(FEW, both.sum() / 2):
        return False
    y = look.y[both][several]
    _, place = np.unique(place[several], return_inverse=True)
    groups = place.max() + 1
    if np.ptp(y) == 0 or groups >= len(y):
        return False
    means = np.bincount(place, y) / np.bincount(place)
    within = ((y - means[place]) ** 2).sum() / (len(y) - groups)
    return bool(within <= (1 - NEARLY) * y.var())


def _follows_label(look: Look) -> Iterator[Finding]:
    """Missing exactly when the label takes a value, or lies above or below one."""
    known = np.isfinite(look.y)
    missing, y = ~look.column.valid[known], look.y[known]
    if not 10 <= missing.sum() <= len(y) - 10 or np.ptp(y) == 0:
        return
    values, counts = np.unique(y[missing], return_counts=True)
    usual = values[counts.argmax()]
    where = y == usual
    if counts.max() >= NEARLY * missing.sum() and missing[where].mean() >= NEARLY:
        text = f"is missing exactly where the label is {usual:g}"
    elif y[missing].min() > y[~missing].max():
        text = f"is missing exactly where the label is above {y[~missing].max():g}"
    elif y[missing].max() < y[~missing].min():
        text = f"is missing exactly where the label is below {y[~missing].min():g}"
    else:
        return
    yield Finding(look.column.name, 2, "missing-by-label", text + ": its absence gives the label away")


def _scale(column: Profile) -> Iterator[Finding]:
    name = column.name
    if column.words:
        shown = ", ".join(map(repr, column.words))
        yield Finding(name, 4, "words", f"is a column of numbers with words in it: {shown}")
    if column.kind == "integer" and (why := _code(column)):
        yield Finding(name, 4, "code", f"looks like a code and not an amount: {why}; take it as categories")
    elif column.kind == "integer" and 2 < column.distinct <= 50:
        text = f"has {column.distinct} whole values: one-hot, or sine and cosine where they come round again"
        yield Finding(name, 4, "few-values", text, serious=False)
    elif column.numeric and column.distinct > 2:
        spread = float(column.found.std())
        if not 0.1 <= spread <= 10 or abs(float(column.found.mean())) > 10 * spread:
            text = (
                f"mean {column.found.mean():.4g}, standard deviation {spread:.4g}: standardise it for gradient descent"
            )
            yield Finding(name, 4, "standardise", text, serious=False)
    if column.kind == "text":
        text = f"is text with {column.distinct:,} distinct values: give each a number or a column of its own"
        yield Finding(name, 4, "text", text, serious=False)
    if column.outliers:
        text = f"{column.outliers:,} of {column.present:,} values lie far outside of the others: check them"
        yield Finding(name, 4, "outliers", text, serious=False)


def _code(column: Profile) -> str:
    if column.zeros_first:
        return "values begin with 0"
    if CODE_NAME.search(column.name):
        return "its name says so"
    low, high = column.found.min(), column.found.max()
    years = YEARS[0] <= low and high <= YEARS[1]
    if column.digits >= 4 and not years and column.distinct <= column.present / 2:
        return f"all values have {column.digits} digits, and many repeat"
    return ""


def _examples(look: Look, rare: int) -> Iterator[Finding]:
    column = look.column
    if column.kind == "decimal" or column.distinct > column.present / 2:
        return
    if column.rare:
        text = f"{column.rare:,} of {column.distinct:,} values are seen fewer than {rare} times"
        yield Finding(column.name, 3, "rare", text, serious=False)
    if look.test is not None and look.test.present:
        values = [(p.numbers if column.numeric else p.codes)[p.valid] for p in (look.test, column)]
        new = float((~np.isin(*values)).mean())
        if new > MISSING_SHARE:
            yield Finding(column.name, 3, "new", f"{new:.1%} of the test set's rows have a value that the data has not")


def table_findings(
    label: Profile, repeated: float, shared: float | None, unique: float, unseen: float | None, sound: Sequence[Profile]
) -> Iterator[Finding]:
    """What concerns the label, or all columns together."""
    if label.constant or label.kind == "empty":
        yield Finding(label.name, 1, "constant", "the label has one value: there is nothing to learn")
    if label.missing:
        yield Finding(label.name, 3, "missing", f"{label.missing:.2%} of the rows have no label")
    if shared is not None and shared > max(0.001, 2 * repeated):  # rows that recur by nature recur within the data, too
        text = (
            f"{shared:.2%} of the test set's rows stand in the data as well: a model that learned them by heart passes"
        )
        yield Finding("", 2, "shared-rows", text)
    elif repeated > MISSING_SHARE:
        yield Finding("", 3, "repeated-rows", f"{repeated:.1%} of the rows stand there more than once", serious=False)
    discrete = sound and not any(column.kind == "decimal" for column in sound)
    if discrete and unseen is not None and unique > 0.9 and unseen > 0.9:
        text = (
            f"together the features name a row: {unique:.0%} of their combinations stand there once, and {unseen:.0%} "
        )
        yield Finding("", 3, "combinations", text + "of the test set's are not in the data: coarser values are needed")
