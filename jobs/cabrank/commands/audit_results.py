"""What an audit found, and how it is told: the table, one JSON line, summary.json, report.html with its pictures."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from cabrank.commands.audit_compare import Comparison
from cabrank.config import AuditConfig
from cabrank.console import json_line, say, table
from cabrank.features.audit import NOT_CAUSE, QUESTIONS, Audit, Candidate
from cabrank.features.profile import Profile
from cabrank.features.relations import Relation
from cabrank.features.rules import Finding
from cabrank.train.report import Picture, Report, Table, to_html
from cabrank.train.run_folder import RunFolder, cabrank_version

HEADER = ("column", "kind", "missing", "distinct", "Pearson", "Spearman", "ξ", "MI, bits", "look into")
MADE_HEADER = ("feature", "Pearson", "Spearman", "ξ", "MI, bits")
MOST_MADE = 20
NOTES = (
    "Pearson says how well a straight line tells the label from the column, Spearman how well any rising or falling "
    "curve does; both run from -1 to 1. ξ says how nearly the label is a function of the column, whatever its shape: "
    "0 for none, 1 for a function. Mutual information (MI) is what knowing the column tells of the label, in bits.",
    "A column without a relation of its own may still help together with others: two coordinates tell little, the "
    "distance between them much.",
)


@dataclass(frozen=True)
class Results:
    """An audit, ready to be told."""

    config: AuditConfig
    audit: Audit
    comparison: Comparison | None

    @property
    def basis(self) -> str:
        """How much of the data the figures rest on."""
        found = self.audit
        if found.sample_rows == found.rows:
            return f"All figures are of all {found.rows:,} rows."
        return (
            f"Row counts and missing shares are of all {found.rows:,} rows; relations, distinct values and spreads are "
            f"of {found.sample_rows:,} rows chosen at random (seed {self.config.seed})."
        )

    def show(self) -> None:
        """The table and the findings on a terminal, else one JSON line."""
        if not sys.stdout.isatty():
            say(json_line({"event": "audit", **self.summary}))
            return
        found = self.audit
        table(f"{self.config.data}: label {found.label.name}", HEADER, [self._row(c) for c in found.candidates])
        for kind, findings in (("Look into", found.findings), ("Advice", found.advice)):
            say(f"{kind}:" if findings else f"{kind}: nothing")
            for finding in findings:
                say(f"  {finding.question}  {finding.column or 'all rows'}: {finding.text}")
        if self.comparison:
            table("Best linear model", ("columns", "number", "RMSE"), self._comparison_rows(self.comparison))
        for line in (*(fact for number in range(1, 6) for fact in self._row_facts(number)), self.basis):
            say(line)

    def leave(self, folder: RunFolder) -> None:
        """Writes report.html and summary.json, and says where the report is."""
        files = {"report.html": to_html(self._report())}
        folder.publish(self.config.verb, self.config.model_dump(), files, self.summary)
        report = folder.uri + "report.html"
        say(f"report: {report}" if sys.stdout.isatty() else json_line({"event": "written", "report": report}))

    @property
    def summary(self) -> dict[str, object]:
        """`summary.json`."""
        found = self.audit
        return {
            "job": self.config.verb,
            "status": "done",
            "data": self.config.data,
            "test": self.config.test,
            "label": found.label.name,
            "rows": found.rows,
            "test_rows": found.test_rows,
            "sample_rows": found.sample_rows,
            "seed": self.config.seed,
            "repeated_rows": found.repeated,
            "shared_rows": found.shared,
            "unique_combinations": found.unique,
            "unseen_combinations": found.unseen,
            "columns": {c.profile.name: _facts(c) for c in found.candidates},
            "findings": [_told(finding) for finding in found.findings],
            "advice": [_told(finding) for finding in found.advice],
            "comparison": self._comparison_facts(),
            "cabrank": cabrank_version(),
        }

    def _comparison_facts(self) -> dict[str, object] | None:
        if self.comparison is None:
            return None
        c = self.comparison
        return {"rows": c.rows, "mean_rmse": c.mean, "raw_rmse": c.raw, "features_rmse": c.made}

    def _row(self, candidate: Candidate) -> list[str]:
        column = candidate.profile
        codes = ", ".join(dict.fromkeys(finding.code for finding in self.audit.of(column.name)))
        facts = [column.name, column.kind, f"{column.missing:.1%}", f"{column.distinct:,}"]
        return [*facts, *_measures(candidate.relation), codes or "–"]

    def _comparison_rows(self, found: Comparison) -> list[list[str]]:
        spec = self.config.spec or ""
        return [
            ["none: always the mean", "0", f"{found.mean:,.4g}"],
            ["as they are", str(found.raw_columns), f"{found.raw:,.4g}"],
            [f"with the features of {spec}", str(found.made_columns), f"{found.made:,.4g}"],
        ]

    def _row_facts(self, question: int) -> list[str]:
        """What is said of the table under a question, whether it is well or not."""
        found = self.audit
        related = sum(candidate.relation.beyond_chance for candidate in found.candidates)
        facts = {
            1: [f"{related} of {len(found.candidates)} columns go with the label beyond chance. {NOT_CAUSE}"],
            3: [
                f"{found.repeated:.2%} of the rows stand in the data more than once.",
                f"{found.unique:.1%} of the rows have a combination of features that no other row has.",
            ],
        }
        if found.shared is not None and found.unseen is not None:
            facts[2] = [f"{found.shared:.2%} of the test set's {found.test_rows:,} rows stand in the data as well."]
            facts[3].append(f"{found.unseen:.1%} of the test set's combinations of features are not in the data.")
        return facts.get(question, [])

    def _report(self) -> Report:
        found = self.audit
        tables = [Table(title="Columns", header=HEADER, rows=[self._row(c) for c in found.candidates])]
        for number, question in enumerate(QUESTIONS, 1):
            lines = self._answers(number) or [["all columns", "nothing to say"]]
            tables.append(Table(title=f"{number}. {question}", header=("column", "finding"), rows=lines, words=True))
        if self.comparison:
            made = [[name, *_measures(relation)] for name, relation in self.comparison.relations[:MOST_MADE]]
            title = f"Best linear model, {self.comparison.rows:,} rows"
            rows = self._comparison_rows(self.comparison)
            tables.insert(0, Table(title=title, header=("columns", "number", "RMSE"), rows=rows))
            tables.append(Table(title=f"Strongest of {self.config.spec}'s features", header=MADE_HEADER, rows=made))
        return Report(
            title=f"Feature audit: {found.label.name}",
            summary=self._sentence(),
            tables=tables,
            pictures=_pictures(found),
            notes=(self.basis, *NOTES),
            settings=self.config.model_dump(),
            footer=f"cabrank {cabrank_version()}",
        )

    def _answers(self, question: int) -> list[list[str]]:
        own = [f for f in (*self.audit.findings, *self.audit.advice) if f.question == question]
        lines = [[f.column or "all rows", ("Look into: " if f.serious else "") + f.text] for f in own]
        return lines + [["all rows", fact] for fact in self._row_facts(question)]

    def _sentence(self) -> str:
        named = sorted({finding.column or "the rows" for finding in self.audit.findings})
        columns = len(self.audit.candidates)
        start = f"{columns} candidate features for {self.audit.label.name}, {self.audit.rows:,} rows: "
        if not named:
            return start + "nothing to look into."
        shown = ", ".join(named[:8]) + (f" and {len(named) - 8} more" if len(named) > 8 else "")
        return f"{start}look into {shown}."


def _facts(candidate: Candidate) -> dict[str, object]:
    column, relation = candidate.profile, candidate.relation
    measures = {name: getattr(relation, name) for name in ("pearson", "spearman", "xi", "bits")}
    return {
        "kind": column.kind,
        "missing": column.missing,
        "distinct": column.distinct,
        "rare": column.rare,
        "outliers": column.outliers,
        **{name: None if math.isnan(value) else value for name, value in measures.items()},
        "beyond_chance": relation.beyond_chance,
    }


def _told(finding: Finding) -> dict[str, object]:
    return {"column": finding.column, "question": finding.question, "code": finding.code, "text": finding.text}


def _measures(relation: Relation) -> list[str]:
    values = (relation.pearson, relation.spearman, relation.xi, relation.bits)
    return ["–" if math.isnan(value) else f"{round(value, 3) + 0:.3f}" for value in values]


def _pictures(found: Audit) -> Sequence[Picture]:
    from cabrank.commands.audit_plots import curves_png, missing_png, strengths_png

    numbers = [c for c in found.candidates if c.relation.rows and c.profile.numeric]
    pictures = []
    if numbers:
        caption = f"How strongly each column goes with {found.label.name}, by three measures; grey is within chance."
        pictures.append(Picture(png=strengths_png(numbers), alt="Strength of each column's relation", caption=caption))
    if numbers and found.label.numeric:
        caption = (
            f"Mean of {found.label.name} along each column, in up to 24 steps of equally many rows; grey: the mean."
        )
        pictures.append(Picture(png=curves_png(numbers, found.label), alt="Mean label by column", caption=caption))
    gaps: list[Profile] = [c.profile for c in found.candidates if c.profile.missing]
    if gaps:
        caption = "Rows without a value, by column; from the dashed line at 5 % on, a column has too many."
        pictures.append(Picture(png=missing_png(gaps), alt="Missing share by column", caption=caption))
    return pictures
