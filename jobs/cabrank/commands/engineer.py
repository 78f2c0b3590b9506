"""`cabrank features engineer`: makes the features that a spec describes, and writes them as part files.

spec ─► fit, unless it is fitted ─► bind ─► parts ─► .meta/features.json, counts and statistics beside them
"""

from __future__ import annotations

import logging
import sys
import time

from cabrank.config import EngineerConfig
from cabrank.console import json_line, say, table, track
from cabrank.data.listing import list_parts
from cabrank.data.metadata import read_counts
from cabrank.data.reading import part_schema
from cabrank.features.engineer import Engineered, Features
from cabrank.features.fitting import Training, fit
from cabrank.features.spec import Spec
from cabrank.features.writing import FITTED, Destination, write_parts
from cabrank.store import canonical, open_store

log = logging.getLogger("cabrank")


def run(config: EngineerConfig) -> None:
    """Fits the spec to the data unless it is fitted, writes the parts and what was fitted, prints a summary."""
    began = time.perf_counter()
    spec = Spec.read(config.spec, config.storage_options())
    uri, folder = canonical(config.src), canonical(config.dest).removesuffix("/") + "/"
    store, to = (
        open_store(uri, config.storage_options()),
        Destination(folder, open_store(folder, config.storage_options())),
    )
    parts = list_parts(uri, store)
    schema = part_schema(parts, store, config.label, config.columns)
    to.names(parts)  # refuses a folder that will not do, before the data is read
    total = sum(read_counts(parts, store).values()) or None
    features = fitted(spec, Training(uri, parts, store, schema, config.nulls), total)
    engineered = features.bind(schema.columns)
    rows = dropped = 0
    with track("features", total) as advance:
        for written in write_parts(parts, store, schema, config.nulls, engineered, to):
            rows, dropped = rows + written.rows - written.dropped, dropped + written.dropped
            advance(written.rows)
    to.store.put(folder + FITTED, features.spec.encoded())
    show(folder, len(parts), rows, dropped, engineered, time.perf_counter() - began)


def fitted(spec: Spec, data: Training, total: int | None) -> Features:
    """The features as they were fitted before, or fitted now to `data`."""
    if spec.fitted_to:
        log.info(
            "the features were fitted to %s, %d rows; these values are used here", spec.fitted_to, spec.fitted_rows
        )
        return Features(spec)
    if not any(step.need for step in spec.step):
        return fit(spec, data)
    with track("fit", total) as advance:
        return fit(spec, Training(data.name, data.parts, data.store, data.schema, data.nulls, advance))


def show(folder: str, parts: int, rows: int, dropped: int, engineered: Engineered, seconds: float) -> None:
    """What was made: a table on a terminal, else one JSON line."""
    outside = {name: count for name, count in sorted(engineered.outside.items()) if count}
    for name, count in outside.items():
        log.warning("column %r: %d of %d values lie outside of what was fitted", name, count, rows)
    facts: dict[str, object] = {"folder": folder, "parts": parts, "rows": rows, "dropped": dropped}
    facts |= {"columns": len(engineered.columns), "rows_per_second": round(rows / seconds)}
    if not sys.stdout.isatty():
        say(json_line({"event": "features", **facts, "names": engineered.columns, "outside": outside}))
        return
    names = {step.kind: len([n for n in step.outputs if n not in engineered.drop]) for step in engineered.steps}  # type: ignore[attr-defined]
    lines = [(name.replace("_", " "), str(value)) for name, value in facts.items()]
    table("features", ("", ""), [*lines, *((f"columns by {kind}", str(count)) for kind, count in names.items())])
    say(f"for a test set, and at inference: --spec {folder}{FITTED}".replace("file://", ""))
