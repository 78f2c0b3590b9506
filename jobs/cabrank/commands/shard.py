"""Job 1: counts the rows and takes the statistics of each part, and writes `.meta` beside the parts.

list the parts ─► whole folders ─► leave out what the plan file knows ─► read the rest ─► pool ─► publish ─► say
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cabrank.config import ShardConfig
from cabrank.console import counted, json_line, say, table, track
from cabrank.data.formats import kind
from cabrank.data.listing import Part, list_parts
from cabrank.data.metadata import PartRecord, PlanFile, folder_parts, known_records, publish, read_plan
from cabrank.data.parse import Schema
from cabrank.data.reading import part_schema, read_blocks
from cabrank.data.statistics import Moments
from cabrank.errors import BadValueError, MetadataError
from cabrank.nulls import NullPolicy
from cabrank.store import Store, canonical, open_store

log = logging.getLogger("cabrank")

ESTIMATE_BYTES = 1 << 16  # of the first part: enough lines to guess how many rows there are, for the bar's time left


@dataclass(frozen=True)
class Done:
    """What became of one folder."""

    folder: str
    plan: PlanFile
    read: int
    """Parts read: the others were known."""
    rows_read: int
    seconds: float
    published: bool


def run(config: ShardConfig) -> None:
    """Measures the parts that changed since the last time, publishes each folder's metadata, prints a summary."""
    uri = canonical(config.data)
    store = open_store(uri, config.storage_options(), writable=True)
    selected = list_parts(uri, store)
    kinds = {kind(part) for part in selected}
    for folder in dict.fromkeys(part.folder for part in selected):
        earlier = earlier_plan(folder, store)
        chosen = {part.uri for part in selected if part.folder == folder}
        parts = whole_folder(folder, chosen, kinds, earlier, store)
        show(shard_folder(folder, parts, earlier, store, config))


def whole_folder(folder: str, chosen: set[str], kinds: set[str], earlier: PlanFile | None, store: Store) -> list[Part]:
    """All parts of a folder: metadata that described only some would claim that the others are not there. Beside the
    chosen ones these are the numbered files of the same kind, and whatever the earlier plan counted."""
    counted_before = {record.name for record in earlier.parts} if earlier else set()
    whole = [
        part
        for part in folder_parts(folder, store)
        if part.size != 0
        and (part.uri in chosen or part.name in counted_before or (part.number is not None and kind(part) in kinds))
    ]
    if more := len(whole) - len(chosen):
        log.warning(
            "%s: %s beside the named ones; the metadata describes the whole folder", folder, counted(more, "part")
        )
    return whole


def shard_folder(
    folder: str, parts: Sequence[Part], earlier: PlanFile | None, store: Store, config: ShardConfig
) -> Done:
    """Counts one folder's parts, those known from its plan file without reading them, and publishes the result."""
    began = time.perf_counter()
    known = known_records(earlier, parts, earlier.nulls) if earlier else {}
    described = [part for part in parts if part.uri in known]
    schema = chosen_schema(earlier if known else None, described or parts, store, config)
    if earlier and (earlier.nulls, earlier.columns) != (config.nulls, schema.columns):
        known = {}  # counted, but measured otherwise
    todo = [part for part in parts if part.uri not in known]
    try:
        fresh = {record.name: record for record in measure(todo, store, schema, config.nulls)}
    except BadValueError as error:
        raise BadValueError(f"{error}; or measure other columns only: --columns (and --label) name them") from error
    plan = PlanFile.make(schema.columns, config.nulls, [*known.values(), *fresh.values()])
    published = publish(folder, plan, store)
    if unnumbered := [part for part in parts if part.number is None]:
        log.info(
            "%s: %s without a number in the name, as part-00007-….csv has (the first: %s): .meta/shards, which others "
            "read, leaves them out; cabrank finds their counts in .meta/plan.json",
            folder, counted(len(unnumbered), "part"), unnumbered[0].name,
        )  # fmt: skip
    rows_read = sum(record.rows for record in fresh.values())
    return Done(folder, plan, len(todo), rows_read, time.perf_counter() - began, published)


def chosen_schema(earlier: PlanFile | None, parts: Sequence[Part], store: Store, config: ShardConfig) -> Schema:
    """The columns that the caller names; else those that were measured the last time; else all. As `parts` have them:
    those that the earlier plan describes, where there is one."""
    if earlier is None or config.label is not None or config.columns is not None:
        return part_schema(parts, store, config.label, config.columns)
    label, *features = earlier.columns
    return part_schema(parts, store, label, features)


def earlier_plan(folder: str, store: Store) -> PlanFile | None:
    """The plan file of an earlier run; one that cannot be read is written anew, and that is said."""
    try:
        return read_plan(folder, store)
    except MetadataError as error:
        log.warning("%s; writing it anew", error)
        return None


def measure(parts: Sequence[Part], store: Store, schema: Schema, nulls: str) -> Iterator[PartRecord]:
    """Reads `parts`, in parallel and in bounded memory, and yields the record of each."""
    if not parts:
        return
    pieces: list[Moments] = []
    with track("shard", estimate_rows(parts, store)) as advance:
        for block in read_blocks(parts, store, schema, NullPolicy.of(nulls)):
            pieces.append(Moments.of(block.parsed.matrix))
            advance(block.parsed.rows)
            if block.last:
                info = block.part.info
                yield PartRecord(
                    name=block.part.name,
                    bytes=info.size,
                    pin=info.pin,
                    rows=block.end_row,
                    statistics=Moments.pooled(pieces),
                )
                pieces = []


def estimate_rows(parts: Sequence[Part], store: Store) -> int | None:
    """About how many rows the parts have, from the first one's line length; None where that says nothing."""
    if not parts[0].name.endswith(".csv"):
        return None
    head = store.read(parts[0].info, 0, min(ESTIMATE_BYTES, parts[0].size or 0))
    lines, sizes = head.count(b"\n"), [part.size for part in parts if part.size is not None]
    return sum(sizes) * lines // len(head) if lines > 1 else None


def show(done: Done) -> None:
    """Prints one folder's summary: tables on a terminal, else one JSON line."""
    plan, found = done.plan, done.plan.statistics
    size = sum(part.bytes or 0 for part in plan.parts)
    rate = round(done.rows_read / done.seconds) if done.rows_read else 0
    statistics = {"mean": found.mean, "stddev": found.stddev, "min": found.min, "max": found.max}
    if not sys.stdout.isatty():
        facts = {"event": "shard", "folder": done.folder, "parts": len(plan.parts), "rows": plan.rows, "bytes": size}
        facts |= {"parts_read": done.read, "rows_per_second": rate, "dropped": plan.rows - found.count}
        facts |= {"published": done.published, "plan": plan.id}
        by_name = {name: dict(zip(plan.columns, values, strict=False)) for name, values in statistics.items()}
        say(json_line({**facts, **by_name}))
        return
    state = "published" if done.published else "unchanged"
    say(
        f"{done.folder}: {counted(plan.rows, 'row')}, {counted(size, 'byte')}, {counted(len(plan.parts), 'part')}, "
        f"{done.read:,} read, {rate:,} rows/s"
    )
    say(f"{counted(plan.rows - found.count, 'row')} dropped; .meta {state}, plan {plan.id[:12]}")
    by_column = zip(plan.columns, *(values or ("",) * len(plan.columns) for values in statistics.values()), strict=True)
    rows = [(name, *(f"{v:,.6g}" if isinstance(v, float) else v for v in values)) for name, *values in by_column]
    table("statistics", ("column", "mean", "stddev", "min", "max"), rows)
