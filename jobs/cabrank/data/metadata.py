"""What lies under `.meta` beside the parts: counts, statistics, and the plan file that says which bytes they describe.

    csv/dev/.meta/shards/part-….csv   id,count             id: the number in a part's name; no line for an empty part
    csv/dev/.meta/stats/part-….csv    summary,<column>,…   lines count, mean, stddev (of the sample), min, max
    csv/dev/.meta/plan.json           each part's name, bytes, pin, rows, statistics; digests of the two files above

The two tables are the field's own (Spark jobs write them, several files a table), so that others' readers can use ours
and we theirs. The plan file is ours: with it, a part that was replaced after it was counted is noticed by its pin. It
is believed only while it describes the very tables that lie there, for Spark may have replaced them.

A publication is many operations, and a reader may come between any two of them:

    1  put plan.json, state "publishing"     our readers now see no metadata, and count for themselves
    2  delete the old tables                 Spark's _SUCCESS first
    3  put the new statistics, the new counts
    4  put plan.json, state "complete"       our readers now see the new metadata

A reader lists `.meta` before and after it reads, and starts over when it changed. A publication broken off after 1 is
finished by the next `cabrank shard`, without reading the parts again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cabrank.data.count_table import REMEDY as REMEDY
from cabrank.data.count_table import Table, sha256
from cabrank.data.listing import Part, hidden, list_parts
from cabrank.data.statistics import Moments
from cabrank.errors import ChangedError, MetadataError, ObjectMissingError, StorageError
from cabrank.store import ObjectInfo, Store

META, PLAN, SHARDS, STATS = ".meta/", "plan.json", "shards/", "stats/"
ATTEMPTS = 3  # of reading metadata that is being published meanwhile

log = logging.getLogger("cabrank")


class PartRecord(BaseModel):
    """One part in the plan file. `pin` is `ObjectInfo.pin`: which bytes were counted; `rows` before the null policy,
    `statistics.count` after it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    bytes: int | None
    pin: str
    rows: int = Field(ge=0, lt=10**18)
    statistics: Moments

    @property
    def number(self) -> int | None:
        """The number in the name."""
        return Part.of(ObjectInfo(self.name, self.bytes)).number


class PlanFile(BaseModel):
    """`.meta/plan.json`: all parts of one folder as they were counted, ordered by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    state: Literal["publishing", "complete"] = "complete"
    id: str
    columns: tuple[str, ...]
    nulls: str
    parts: tuple[PartRecord, ...]
    files: dict[str, str]
    """Path under `.meta/` → sha256 of each table published with this plan."""

    @classmethod
    def make(cls, columns: Sequence[str], nulls: str, parts: Iterable[PartRecord]) -> PlanFile:
        """The plan of parts just counted. Its id is a digest of what a reader relies on: columns, parts, pins, rows."""
        parts = tuple(sorted(parts, key=lambda part: part.name.encode()))
        facts = [1, list(columns), nulls, [[part.name, part.bytes, part.pin, part.rows] for part in parts]]
        digest = hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()
        plan = cls(id=digest, columns=tuple(columns), nulls=nulls, parts=parts, files={})
        return plan.model_copy(update={"files": {name: sha256(data) for name, data in plan.tables().items()}})

    @classmethod
    def parse(cls, data: bytes, uri: str) -> PlanFile:
        """Reads a plan file; `MetadataError` when it is none."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise MetadataError(f"{uri}: no plan file: {where}: {first['msg']}; {REMEDY}") from error

    def encoded(self, state: Literal["publishing", "complete"] = "complete") -> bytes:
        """The file's bytes; equal plans give equal bytes."""
        return self.model_copy(update={"state": state}).model_dump_json().encode() + b"\n"

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def statistics(self) -> Moments:
        """Of all parts."""
        return Moments.pooled([part.statistics for part in self.parts])

    def tables(self) -> dict[str, bytes]:
        """The two CSV files by their path under `.meta/`, named as Spark would."""
        name = f"part-00000-{self.id[:32]}-c000.csv"
        return {SHARDS + name: self._counts_csv(), STATS + name: self._statistics_csv()}

    def _counts_csv(self) -> bytes:
        """`id,count` of the parts that have rows, a number, and the number for themselves."""
        uses = Counter(part.number for part in self.parts)
        rows = [(part.number, part.rows) for part in self.parts if part.number is not None and part.rows]
        return _csv([("id", "count"), *sorted((n, count) for n, count in rows if uses[n] == 1)])

    def _statistics_csv(self) -> bytes:
        """`summary,<columns>`; a field is empty where the statistic does not exist (no rows, or one row's stddev)."""
        found = self.statistics
        blank = ("",) * len(self.columns)
        lines = {"mean": found.mean, "stddev": found.stddev, "min": found.min, "max": found.max}
        header, counts = ("summary", *self.columns), ("count", *[found.count] * len(self.columns))
        return _csv([header, counts, *((name, *(values or blank)) for name, values in lines.items())])


def _csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


# ---- reading ----


def read_counts(parts: Sequence[Part], store: Store, partitions_glob: str | None = None) -> dict[str, int]:
    """Rows of the parts whose metadata is there and describes them, by URI; the caller counts the others.

    Each folder's own `.meta` is read. With `partitions_glob`, the `id,count` files that it names are one table for all
    parts instead, and no plan file is looked for. `MetadataError`, with file and line, for metadata that is malformed,
    contradicts itself, or describes parts that are not there or are empty.
    """
    if partitions_glob is not None:
        files = [found.info for found in list_parts(partitions_glob, store)]
        table = Table.read(files, store)
        folders = sorted({part.folder for part in parts})
        siblings = [part for folder in folders for part in folder_parts(folder, store)]
        table.check(siblings, ", ".join(folders))
        return _by_number(parts, siblings, table)
    folders_of: dict[str, list[Part]] = {}
    for part in parts:
        folders_of.setdefault(part.folder, []).append(part)
    return {uri: n for folder, own in folders_of.items() for uri, n in _folder_counts(folder, own, store).items()}


def folder_parts(folder: str, store: Store) -> list[Part]:
    """What a folder itself (not those below it) holds that could be a part, empty objects included."""
    return [
        Part.of(info)
        for info in store.list(folder)
        if "/" not in info.uri[len(folder) :] and not hidden(info.uri, folder)
    ]


def read_plan(folder: str, store: Store) -> PlanFile | None:
    """The folder's plan file, whatever its state; None where there is none."""
    try:
        info = store.stat(folder + META + PLAN)
        return PlanFile.parse(store.read(info), info.uri)
    except (ObjectMissingError, ChangedError):  # Changed: being published this moment
        return None


def _folder_counts(folder: str, parts: list[Part], store: Store) -> dict[str, int]:
    """Counts from a folder's own metadata, as it stood at one moment."""
    for _ in range(ATTEMPTS):
        before = _listed(folder, store)
        if not before:
            return {}
        try:
            counts = _counts_now(folder, parts, store)
        except (ChangedError, ObjectMissingError):
            continue
        except MetadataError:
            if list(store.list(folder + META)) == before:
                raise
            continue
        if list(store.list(folder + META)) == before:
            return counts
    log.warning("%s%s is being written; its parts are counted anew", folder, META)
    return {}


def _listed(folder: str, store: Store) -> list[ObjectInfo]:
    """What lies under `.meta`; nothing, with a notice, where a web server shows its files but not its folders."""
    try:
        return list(store.list(folder + META))
    except StorageError as error:
        if not folder.startswith(("http://", "https://")):
            raise
        log.warning("%s%s cannot be listed (%s); its parts are counted anew", folder, META, error)
        return []


def _counts_now(folder: str, parts: list[Part], store: Store) -> dict[str, int]:
    plan = read_plan(folder, store)
    if plan is not None and plan.state == "publishing":
        log.warning("%s%s is being written, or was left so; its parts are counted anew", folder, META)
        return {}
    table = Table.read(table_files(folder + META + SHARDS, store), store)
    siblings = folder_parts(folder, store)
    table.check(siblings, folder)
    if plan is None or not _describes(plan, folder, table):
        return _by_number(parts, siblings, table)
    return _by_name(parts, siblings, plan)


def _describes(plan: PlanFile, folder: str, table: Table) -> bool:
    """Whether the counts that lie there are those which the plan file was published with."""
    own = {folder + META + name: digest for name, digest in plan.files.items() if name.startswith(SHARDS)}
    if own != table.files:
        log.info("%s%s%s describes other tables than those beside it, and is not used", folder, META, PLAN)
    return own == table.files


def table_files(prefix: str, store: Store) -> list[ObjectInfo]:
    """The files of a table, several of which may be one."""
    return [info for info in store.list(prefix) if info.size != 0 and not hidden(info.uri, prefix)]


def _by_number(parts: Sequence[Part], siblings: Sequence[Part], table: Table) -> dict[str, int]:
    """Counts joined by the number in the name, which must be one part's own."""
    uses = Counter(part.number for part in siblings)
    _say_doubles(uses, parts)
    return {
        part.uri: table.counts[part.number][0]
        for part in parts
        if part.number is not None and part.number in table.counts and uses[part.number] == 1
    }


def _by_name(parts: Sequence[Part], siblings: Sequence[Part], plan: PlanFile) -> dict[str, int]:
    """Counts of the parts that are still the bytes which were counted."""
    uses = Counter(part.number for part in siblings)
    _say_doubles(uses, parts)
    records = {record.name: record for record in plan.parts}
    fits = {part.uri: records[part.name].rows for part in parts if same_bytes(records.get(part.name), part)}
    changed = [part for part in parts if part.uri not in fits]
    if changed:
        log.warning(
            "%s: %d of %d parts are new or replaced since .meta was written (the first: %s); they are counted anew",
            parts[0].folder, len(changed), len(parts), changed[0].name,
        )  # fmt: skip
    return {
        part.uri: fits[part.uri]
        for part in parts
        if part.uri in fits and (part.number is None or uses[part.number] == 1)
    }


def same_bytes(record: PartRecord | None, part: Part) -> bool:
    """Whether the record was taken from the part's present bytes."""
    return record is not None and bool(record.pin) and record.pin == part.info.pin


def _say_doubles(uses: Counter[int | None], parts: Sequence[Part]) -> None:
    doubles = [part for part in parts if part.number is not None and uses[part.number] > 1]
    if doubles:
        log.warning(
            "%s: %d parts share their number with another part (%s); they are counted anew",
            doubles[0].folder, len(doubles), ", ".join(part.name for part in doubles[:3]),
        )  # fmt: skip


# ---- publishing ----


def known_records(plan: PlanFile | None, parts: Sequence[Part], nulls: str) -> dict[str, PartRecord]:
    """By URI, the records of an earlier plan that still describe `parts`: these need not be read again."""
    if plan is None or plan.nulls != nulls:
        return {}
    records = {record.name: record for record in plan.parts}
    return {part.uri: records[part.name] for part in parts if same_bytes(records.get(part.name), part)}


def publish(folder: str, plan: PlanFile, store: Store) -> bool:
    """Replaces the folder's metadata, others' included, as the module's docstring says; False where it already stood
    there to the byte, and nothing was written."""
    meta = folder + META
    wanted = {meta + name: data for name, data in plan.tables().items()}
    old = [info for table in (SHARDS, STATS) for info in store.list(meta + table)]
    same_files = {info.uri for info in old} == set(wanted)
    if same_files and all(_stands(uri, data, store) for uri, data in {meta + PLAN: plan.encoded(), **wanted}.items()):
        return False
    store.put(meta + PLAN, plan.encoded("publishing"))
    for info in sorted(old, key=lambda info: not info.uri.endswith("/_SUCCESS")):
        store.delete(info.uri)
    for uri, data in sorted(wanted.items(), reverse=True):  # statistics before counts
        store.put(uri, data)
    store.put(meta + PLAN, plan.encoded())
    return True


def _stands(uri: str, data: bytes, store: Store) -> bool:
    """Whether the object is there with exactly these bytes."""
    try:
        info = store.stat(uri)
        return info.size in (None, len(data)) and store.read(info) == data
    except (ObjectMissingError, ChangedError):
        return False
