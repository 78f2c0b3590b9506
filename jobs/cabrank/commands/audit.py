"""`cabrank features audit`: five questions to each column of any CSV, before a model learns from it.

parts ─► one pass: counts, a sample, a sketch of rows ─► rules ─► table, report.html, summary.json
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cabrank.commands.audit_compare import Comparison, compare
from cabrank.commands.audit_results import Results
from cabrank.config import AuditConfig
from cabrank.console import track
from cabrank.data.listing import Part, list_parts
from cabrank.data.metadata import read_counts
from cabrank.data.parse import Schema
from cabrank.data.reading import part_schema
from cabrank.errors import ConfigError
from cabrank.features.audit import Audit, audit, check_test
from cabrank.features.fitting import Training
from cabrank.features.spec import Spec
from cabrank.features.suggest import suggestions
from cabrank.features.survey import Survey, survey
from cabrank.store import Store, canonical, open_store
from cabrank.train.run_folder import RunFolder


def run(config: AuditConfig) -> None:
    """Reads the data, and the test set where there is one, judges the columns, shows and writes what was found."""
    spec = Spec.read(config.spec, config.storage_options()) if config.spec else None
    data = Source.open(config.data, config, config.label)
    test = Source.open(config.test, config) if config.test else None
    late = names_of(config.known_late, data)
    if test:
        check_test(data.schema.columns, test.schema.columns, test.uri)
        test = replace(test, schema=data.schema)
    folder = RunFolder(config.out, config.storage_options()) if config.out else None
    if folder:
        folder.claim(config.verb, config.model_dump())
    surveys = data.survey(config, "audit"), test.survey(config, "audit of the test set") if test else None
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # sums of values near the largest float are infinite, and shown so
        found = audit(
            surveys[0],
            label=data.schema.columns[0],
            test=surveys[1],
            known_late=late,
            rare=config.rare,
            seed=config.seed,
        )
    found = replace(found, advice=(*found.advice, *suggestions([c.profile for c in found.candidates])))
    results = Results(config, found, compare_best(spec, found, data, late) if spec else None)
    results.show()
    if folder:
        with np.errstate(over="ignore", invalid="ignore"):
            results.leave(folder)


@dataclass(frozen=True)
class Source:
    """A table to audit."""

    uri: str
    parts: list[Part]
    store: Store
    schema: Schema

    @classmethod
    def open(cls, data: str, config: AuditConfig, label: str | None = None) -> Source:
        """Lists the parts and reads the first one's header."""
        uri = canonical(data)
        store = open_store(uri, config.storage_options())
        parts = list_parts(uri, store)
        return cls(uri, parts, store, part_schema(parts, store, label, counting=True))

    def survey(self, config: AuditConfig, what: str) -> Survey:
        """The pass over all rows."""
        with track(what, sum(read_counts(self.parts, self.store).values()) or None) as advance:
            return survey(
                self.parts, self.store, self.schema, sample_rows=config.sample_rows, seed=config.seed, advance=advance
            )


def names_of(text: str | None, data: Source) -> list[str]:
    """The names in --known-late; `ConfigError` for one that is no column."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in data.schema.columns:
            raise ConfigError(f"--known-late has {name!r}; the columns are: {', '.join(data.schema.columns)}")
    return names


def compare_best(spec: Spec, found: Audit, data: Source, late: list[str]) -> Comparison:
    """The best linear model of the columns that are plain numbers and known in time, with the features and without."""
    if not found.label.numeric:
        raise ConfigError(
            f"--spec compares linear models, and the label {found.label.name!r} is text; leave --spec out"
        )
    plain = [c.profile.name for c in found.candidates if c.profile.numeric and not c.profile.words]
    columns = (found.label.name, *(name for name in plain if name not in late))
    schema = Schema(columns, data.schema.header)
    with track("comparison", found.rows) as advance:
        return compare(spec, Training(data.uri, data.parts, data.store, schema, "drop", advance), found)
