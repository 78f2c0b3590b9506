"""Metadata: what readers get from theirs and ours, what is refused, what a reader sees while it is replaced."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from cabrank.data.listing import Part
from cabrank.data.metadata import PartRecord, PlanFile, known_records, publish, read_counts, read_plan
from cabrank.data.statistics import Moments
from cabrank.errors import MetadataError, NoDataError, UnreachableError
from cabrank.store import ObjectInfo

FOLDER = "mem://bucket/csv/dev/"
SHARDS, STATS, PLAN = FOLDER + ".meta/shards/", FOLDER + ".meta/stats/", FOLDER + ".meta/plan.json"


def uri(number: int) -> str:
    return f"{FOLDER}part-{number:05d}-abc-c000.csv"


def parts_of(store: Any, folder: str = FOLDER) -> list[Part]:
    infos = [info for info in store.list(folder) if "/." not in info.uri and "/_" not in info.uri]
    return [Part.of(info) for info in infos if info.size]


@pytest.fixture
def three(memory_store: Any) -> Any:
    """Parts 0, 1 and 2 with 1, 2 and 3 rows; no metadata."""
    for number in range(3):
        memory_store.put(uri(number), b"a,b\n" + b"1,2\n" * (number + 1))
    return memory_store


def plan_of(store: Any, folder: str = FOLDER) -> PlanFile:
    """A plan with the rows counted here, and made-up statistics."""
    records = []
    for part in parts_of(store, folder):
        rows = store.objects[part.uri].count(b"\n") - 1
        moments = Moments(count=rows, mean=(1.5, 2), m2=(0.5, 0), min=(1, 2), max=(2, 2))
        records.append(PartRecord(name=part.name, bytes=part.size, pin=part.info.pin, rows=rows, statistics=moments))
    return PlanFile.make(("a", "b"), "raise", records)


def counts(store: Any) -> dict[int, int]:
    """What a reader gets, by number."""
    found = read_counts(parts_of(store), store)
    return {number: found[uri(number)] for number in range(3) if uri(number) in found}


# ---- others' tables ----


@pytest.mark.parametrize(
    "files",
    [
        {"part-00000-x.csv": "id,count\n0,1\n1,2\n2,3\n"},
        {"part-00000-x.csv": '"id","count"\r\n"2","3"\r\n"0","1"\r\n"1","2"'},
        {"part-00000-x.csv": "\ufeffid,count\n2,3\n", "part-00001-x.csv": "id,count\n1,2\n0,1\n"},
        {"part-00000-x.csv": "id,count\n", "part-00003-x.csv": "id,count\n00000,1\n00001,2\n00002,3\n\n"},
        {"part-00000-x.csv": "id,count\n0,1\n1,2\n", "part-00001-x.csv": "id,count\n1,2\n2,3\n"},
        {"_SUCCESS": "", ".part-00000-x.csv.crc": "crc\0", "part-00000-x.csv": "id,count\n0,1\n1,2\n2,3\n", "b": ""},
    ],
    ids=["plain", "quoted-crlf-unordered", "bom-two-files", "zero-padded-and-empty", "same-twice", "sparks-markers"],
)
def test_foreign_tables(three: Any, files: dict[str, str]) -> None:
    for name, text in files.items():
        three.put(SHARDS + name, text.encode())
    assert counts(three) == {0: 1, 1: 2, 2: 3}


def test_no_metadata_no_counts(three: Any) -> None:
    assert counts(three) == {}


def test_joined_by_number_not_by_order(three: Any) -> None:
    """Part 1 has no line, as a header-only part has none in Spark's table: 2 must not get 1's place."""
    three.put(SHARDS + "part-00000-x.csv", b"id,count\n2,3\n0,1\n")
    assert counts(three) == {0: 1, 2: 3}


def test_a_glob_of_fewer_parts(three: Any) -> None:
    three.put(SHARDS + "part-00000-x.csv", b"id,count\n0,1\n1,2\n2,3\n")
    assert read_counts([Part.of(three.stat(uri(1)))], three) == {uri(1): 2}


def test_each_folder_has_its_own(memory_store: Any) -> None:
    """`year=2018` and `year=2019` both have a part 0."""
    for year, rows in (("2018", 5), ("2019", 7)):
        folder = f"mem://bucket/year={year}/"
        memory_store.put(folder + "part-00000-a.csv", b"a,b\n" + b"1,2\n" * rows)
        memory_store.put(folder + ".meta/shards/part-00000-x.csv", f"id,count\n0,{rows}\n".encode())
    parts = parts_of(memory_store, "mem://bucket/")
    assert [read_counts(parts, memory_store)[part.uri] for part in parts] == [5, 7]


def test_a_table_elsewhere(three: Any) -> None:
    three.put("mem://bucket/tables/x.csv", b"id,count\n0,10\n1,20\n2,30\n")
    three.put(SHARDS + "part-00000-x.csv", b"id,count\n0,1\n")
    parts = parts_of(three)
    assert sorted(read_counts(parts, three, "mem://bucket/tables/*.csv").values()) == [10, 20, 30]
    with pytest.raises(NoDataError, match="mem://bucket/none/"):
        read_counts(parts, three, "mem://bucket/none/*.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,count\n0,1\n0,2\n", r"x.csv: line 3: id 0 has 2 rows, but 1 in .*x.csv: line 2"),
        ("id,count\n0,1\n7,2\n", r"x.csv: line 3: id 7 has 2 rows, but mem://bucket/csv/dev/ holds no part-00007"),
        ("id,count\n0,-1\n", r"x.csv: line 2: '0,-1'"),
        ("id,count\n0,1\n1,2.5\n", r"x.csv: line 3: '1,2.5'"),
        ("id,count\n0,99999999999999999999999\n", r"x.csv: line 2: '0,99999999999999999999999'"),
        ("id,count\n0,\n", r"x.csv: line 2: '0,'"),
        ("id,count\n0,1,2\n", r"x.csv: line 2: '0,1,2'"),
        ("id,count\n٣,1\n", r"x.csv: line 2: '٣,1'"),
        ("count,id\n1,0\n", r"x.csv: line 1: the header is 'count,id'"),
        ("0,1\n", r"x.csv: line 1: the header is '0,1'"),
        ('id,count\n"0,1\n', r"x.csv: no CSV text"),
        ("id,count\n\0,1\n", r"x.csv"),
    ],
)
def test_refused_tables(three: Any, text: str, message: str) -> None:
    three.put(SHARDS + "x.csv", text.encode())
    with pytest.raises(MetadataError, match=message) as caught:
        counts(three)
    assert "cabrank shard" in str(caught.value)


def test_refused_bytes(three: Any) -> None:
    three.put(SHARDS + "x.csv", b"PAR1\xff\xfe\x00")
    with pytest.raises(MetadataError, match=r"x.csv: no CSV text"):
        counts(three)


def test_two_files_contradict_each_other(three: Any) -> None:
    three.put(SHARDS + "x.csv", b"id,count\n0,1\n")
    three.put(SHARDS + "y.csv", b"id,count\n0,4\n")
    with pytest.raises(MetadataError, match=r"y.csv: line 2: id 0 has 4 rows, but 1 in .*/x.csv: line 2"):
        counts(three)


def test_an_empty_object_that_claims_rows(three: Any) -> None:
    three.put(uri(1), b"")
    three.put(SHARDS + "x.csv", b"id,count\n0,1\n1,2\n")
    with pytest.raises(MetadataError, match=r"id 1 has 2 rows, but .*part-00001-abc-c000.csv is empty"):
        counts(three)
    three.put(SHARDS + "x.csv", b"id,count\n0,1\n1,0\n")
    assert counts(three) == {0: 1}


def test_two_parts_with_one_number(three: Any, caplog: pytest.LogCaptureFixture) -> None:
    three.put(FOLDER + "part-00001-other-c000.csv", b"a,b\n")
    three.put(SHARDS + "x.csv", b"id,count\n0,1\n1,2\n2,3\n")
    assert counts(three) == {0: 1, 2: 3}
    assert "2 parts share their number" in caplog.text


def test_a_web_server_without_folder_pages(
    three: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the parts, and answers 403 for `.meta/`; on S3 the same is an error."""

    def refuse(prefix: str) -> Any:
        raise UnreachableError(f"{prefix}: 403 Forbidden")

    monkeypatch.setattr(three, "list", refuse)
    part = Part.of(ObjectInfo("https://example.org/csv/part-00000-a.csv", 8, "etag"))
    assert read_counts([part], three) == {}
    assert "https://example.org/csv/.meta/ cannot be listed" in caplog.text
    with pytest.raises(UnreachableError):
        read_counts([Part.of(three.stat(uri(0)))], three)


# ---- our own ----


def test_tables_by_hand(three: Any) -> None:
    assert publish(FOLDER, plan_of(three), three)
    (shards,) = [data for name, data in three.objects.items() if name.startswith(SHARDS)]
    (stats,) = [data for name, data in three.objects.items() if name.startswith(STATS)]
    assert shards == b"id,count\n0,1\n1,2\n2,3\n"
    # m2: three times 0.5 about equal means → 1.5 over 5 degrees of freedom
    rows = dict(line.split(",", 1) for line in stats.decode().splitlines())
    assert list(rows) == ["summary", "count", "mean", "stddev", "min", "max"]
    assert (rows["summary"], rows["count"], rows["mean"]) == ("a,b", "6,6", "1.5,2.0")
    assert [float(value) for value in rows["stddev"].split(",")] == pytest.approx([(1.5 / 5) ** 0.5, 0])
    assert (rows["min"], rows["max"]) == ("1.0,2.0", "2.0,2.0")
    plan = json.loads(three.objects[PLAN])
    assert [(part["name"][:10], part["rows"], part["bytes"]) for part in plan["parts"]] == [
        ("part-00000", 1, 8),
        ("part-00001", 2, 12),
        ("part-00002", 3, 16),
    ]
    assert counts(three) == {0: 1, 1: 2, 2: 3}


def test_the_id_follows_from_parts_and_columns(three: Any) -> None:
    plan = plan_of(three)
    assert plan == plan_of(three)
    assert PlanFile.make(("b", "a"), "raise", plan.parts).id != plan.id
    assert PlanFile.make(plan.columns, "drop", plan.parts).id != plan.id
    assert PlanFile.make(plan.columns, "raise", plan.parts[1:]).id != plan.id
    assert PlanFile.make(plan.columns, "raise", reversed(plan.parts)).id == plan.id


def test_a_part_without_rows_has_no_line(three: Any) -> None:
    three.put(uri(1), b"a,b\n")
    publish(FOLDER, plan_of(three), three)
    (shards,) = [data for name, data in three.objects.items() if name.startswith(SHARDS)]
    assert shards == b"id,count\n0,1\n2,3\n"
    assert counts(three) == {0: 1, 1: 0, 2: 3}


def test_a_part_replaced_later_is_left_to_the_caller(three: Any, caplog: pytest.LogCaptureFixture) -> None:
    publish(FOLDER, plan_of(three), three)
    three.put(uri(1), b"a,b\n5,6\n")
    assert counts(three) == {0: 1, 2: 3}
    assert "1 of 3 parts are new or replaced" in caplog.text
    assert "part-00001-abc-c000.csv" in caplog.text


def test_a_part_that_vanished(three: Any) -> None:
    publish(FOLDER, plan_of(three), three)
    three.delete(uri(1))
    with pytest.raises(MetadataError, match=r"id 1 has 2 rows, but .* holds no part-00001"):
        counts(three)


def test_a_part_added_later_is_left_to_the_caller(three: Any) -> None:
    publish(FOLDER, plan_of(three), three)
    three.put(FOLDER + "part-00009-abc-c000.csv", b"a,b\n5,6\n")
    assert counts(three) == {0: 1, 1: 2, 2: 3}


def test_parts_without_pins_are_not_believed(three: Any) -> None:
    publish(FOLDER, plan_of(three), three)
    bare = [Part.of(ObjectInfo(uri(0), 8))]
    assert read_counts(bare, three) == {}


def test_spark_replaces_our_tables(three: Any) -> None:
    """Its counts win over our plan file, even where they are wrong: the reader finds that out from the part."""
    publish(FOLDER, plan_of(three), three)
    for name in [name for name in three.objects if name.startswith(SHARDS)]:
        three.delete(name)
    three.put(SHARDS + "part-00000-spark.csv", b"id,count\n0,8\n1,2\n2,3\n")
    assert counts(three) == {0: 8, 1: 2, 2: 3}


def test_our_table_edited_in_place(three: Any) -> None:
    publish(FOLDER, plan_of(three), three)
    (name,) = [name for name in three.objects if name.startswith(SHARDS)]
    three.put(name, b"id,count\n0,8\n1,2\n2,3\n")
    assert counts(three)[0] == 8


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 2}', b"\xff\xfe"])
def test_a_plan_file_that_is_none(three: Any, data: bytes) -> None:
    three.put(PLAN, data)
    with pytest.raises(MetadataError, match=r"\.meta/plan\.json: no plan file: .*cabrank shard"):
        read_plan(FOLDER, three)
    with pytest.raises(MetadataError, match=r"plan\.json"):
        counts(three)


def test_known_records(three: Any) -> None:
    plan = plan_of(three)
    three.put(uri(1), b"a,b\n5,6\n")
    parts = parts_of(three)
    assert sorted(known_records(plan, parts, "raise")) == [uri(0), uri(2)]
    assert known_records(plan, parts, "drop") == {}
    assert known_records(None, parts, "raise") == {}


# ---- publishing ----


def watch(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """What a reader sees after each operation from now on."""
    seen: list[dict[int, int]] = []

    def after(method: str) -> None:
        original = getattr(store, method)

        def wrapped(*arguments: Any) -> Any:
            result = original(*arguments)
            seen.append(counts(store))
            return result

        monkeypatch.setattr(store, method, wrapped)

    after("put")
    after("delete")
    return seen


def spark(store: Any) -> None:
    for folder in (SHARDS, STATS):
        store.put(folder + "_SUCCESS", b"")
        store.put(folder + "._SUCCESS.crc", b"crc")
    store.put(SHARDS + "part-00000-s.csv", b"id,count\n0,9\n")
    store.put(SHARDS + "part-00001-s.csv", b"id,count\n1,9\n2,9\n")
    store.put(STATS + "part-00000-s.csv", b"summary,a,b\n")


def ours(store: Any) -> None:
    publish(FOLDER, plan_of(store), store)


OLD = {"nothing": {}, "spark": {0: 9, 1: 9, 2: 9}, "ours": {0: 1, 1: 2, 2: 3}}


@pytest.mark.parametrize("before", OLD)
def test_a_reader_sees_old_or_new_or_nothing(three: Any, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    {"nothing": lambda _: None, "spark": spark, "ours": ours}[before](three)
    assert counts(three) == OLD[before]
    if before == "ours":
        three.put(uri(0), b"a,b\n" + b"1,2\n" * 5)
    new = plan_of(three)
    seen = watch(three, monkeypatch)
    assert publish(FOLDER, new, three)
    complete = {0: 5 if before == "ours" else 1, 1: 2, 2: 3}
    assert seen[-1] == complete
    assert all(found in ({}, complete) for found in seen)
    names = [name.removeprefix(FOLDER + ".meta/") for name in three.objects if "/.meta/" in name]
    run = new.id[:32]
    assert sorted(names) == ["plan.json", f"shards/part-00000-{run}-c000.csv", f"stats/part-00000-{run}-c000.csv"]


@pytest.mark.parametrize("before", OLD)
@pytest.mark.parametrize("operations", range(9))
def test_broken_off_after_any_operation_and_run_again(
    three: Any, monkeypatch: pytest.MonkeyPatch, before: str, operations: int
) -> None:
    {"nothing": lambda _: None, "spark": spark, "ours": ours}[before](three)
    three.put(uri(0), b"a,b\n" + b"1,2\n" * 5)
    new, left = plan_of(three), operations

    class BrokenOffError(Exception): ...

    def limited(original: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            nonlocal left
            if not left:
                raise BrokenOffError
            left -= 1
            return original(*arguments)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(three, "put", limited(three.put))
        patch.setattr(three, "delete", limited(three.delete))
        try:
            publish(FOLDER, new, three)
        except BrokenOffError:
            assert counts(three) in ({}, OLD[before], {1: 2, 2: 3})  # ours: the replaced part 0 is noticed
    again = read_plan(FOLDER, three)
    if operations:  # what was measured before the break need not be read again
        assert again is not None
        assert len(known_records(again, parts_of(three), "raise")) == 3
    publish(FOLDER, new, three)
    assert counts(three) == {0: 5, 1: 2, 2: 3}


def test_nothing_new_writes_nothing(three: Any) -> None:
    assert publish(FOLDER, plan_of(three), three)
    three.journal.clear()
    assert not publish(FOLDER, plan_of(three), three)
    assert three.journal == []


@pytest.mark.parametrize("damage", ["shards", "stats", "stranger", "plan"])
def test_damage_is_repaired(three: Any, damage: str) -> None:
    publish(FOLDER, plan_of(three), three)
    good = dict(three.objects)
    victim = next(name for name in good if f".meta/{damage}" in name) if damage != "stranger" else STATS + "part-9.csv"
    three.put(victim, b"other")
    assert publish(FOLDER, plan_of(three), three)
    assert three.objects == good


def test_a_reader_in_the_middle_of_a_publication_starts_over(
    three: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table is replaced between the reader's listing and its reads, once and then always."""
    caplog.set_level(logging.INFO)
    spark(three)
    original, reads = three.read, 0

    def read(info: Any, *arguments: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 2:  # the first of Spark's two tables is read, the second not yet
            publish(FOLDER, plan_of(three), three)
        return bytes(original(info, *arguments))

    monkeypatch.setattr(three, "read", read)
    assert counts(three) == {0: 1, 1: 2, 2: 3}

    def restless(info: Any, *arguments: Any) -> bytes:
        data = original(info, *arguments)
        three.put(STATS + "part-9.csv", str(len(three.journal)).encode())
        return bytes(data)

    monkeypatch.setattr(three, "read", restless)
    assert counts(three) == {}
    assert "is being written" in caplog.text
