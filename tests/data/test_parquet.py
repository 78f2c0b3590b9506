"""Parquet in place: numbers of every kind, rows in order whatever the row groups, and no byte read in vain."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import Bucket

from cabrank.data import parquet, parquet_file
from cabrank.data.listing import Part, list_parts
from cabrank.data.parse import Dtype, Parsed, Schema
from cabrank.data.reading import count_rows, part_schema, read_blocks
from cabrank.errors import BadValueError, ChangedError, DataError, SchemaError
from cabrank.nulls import NullPolicy
from cabrank.store import ObjectInfo, Store, open_store

ID = Schema(("id", "x"))


def encoded(table: pa.Table, **options: Any) -> bytes:
    """A table as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def numbered(start: int, rows: int, **options: Any) -> bytes:
    ids = np.arange(start, start + rows)
    return encoded(pa.table({"id": ids, "x": ids * 0.5}), **options)


def read(
    folder: str, store: Store, schema: Schema = ID, nulls: str = "raise", dtype: Dtype = "float64", **options: Any
) -> list[Parsed]:
    parts = list_parts(folder, store)
    return [block.parsed for block in read_blocks(parts, store, schema, NullPolicy.of(nulls), dtype=dtype, **options)]


def read_one(
    folder: Path, data: bytes, columns: Sequence[str], nulls: str = "raise", dtype: Dtype = "float64"
) -> Parsed:
    (folder / "part-00000.parquet").write_bytes(data)
    store = open_store(str(folder))
    parts = list_parts(str(folder), store)
    schema = part_schema(parts, store, columns[0], list(columns[1:]))
    (parsed,) = read(str(folder), store, schema, nulls, dtype)
    return parsed


@pytest.mark.parametrize("group", [1, 7, 64, 1000])
@pytest.mark.parametrize("block_bytes", [16, 160, 1 << 22])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_row_in_order_whatever_the_row_groups(
    tmp_path: Path, group: int, block_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BLOCK_BYTES", block_bytes)
    start = 0
    for number, rows in enumerate([100, 0, 1, 57]):
        (tmp_path / f"part-{number:05d}.parquet").write_bytes(numbered(start, rows, row_group_size=group))
        start += rows
    store = open_store(str(tmp_path))
    blocks = list(read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy(), threads=threads))
    values = np.concatenate([block.parsed.values for block in blocks])
    assert values.tolist() == [[i, i * 0.5] for i in range(158)]
    assert [block.end_row for block in blocks if block.last] == [100, 0, 1, 57]
    assert max(block.parsed.rows for block in blocks) <= max(1, block_bytes // 16)


def test_numbers_of_every_kind(tmp_path: Path) -> None:
    day, epoch = dt.datetime.fromisoformat("2001-09-09 01:46:40.250"), dt.datetime.fromisoformat("1970-01-01")
    money = [decimal.Decimal("75235.1447794287"), decimal.Decimal("-0.0000000001")]
    columns = {
        "label": pa.array([1.5, -2.0], pa.float64()),
        "single": pa.array([0.1, 3.0], pa.float32()),
        "half": pa.array([np.float16(0.5), np.float16(-2)], pa.float16()),
        "tiny": pa.array([-128, 127], pa.int8()),
        "long": pa.array([2**53 + 1, -(2**63)], pa.int64()),
        "natural": pa.array([2**64 - 1, 0], pa.uint64()),
        "flag": pa.array([True, False]),
        "money": pa.array(money, pa.decimal128(15, 10)),
        "date": pa.array([dt.date(1970, 1, 2), dt.date(1969, 12, 31)], pa.date32()),
        "ms": pa.array([day, epoch], pa.timestamp("ms")),
        "us": pa.array([day, epoch], pa.timestamp("us", tz="America/New_York")),
    }
    values = read_one(tmp_path, encoded(pa.table(columns)), list(columns)).values
    first = [1.5, float(np.float32(0.1)), 0.5, -128, 2.0**53, 2.0**64, 1, 75235.1447794287, 1, 1e9 + 0.25, 1e9 + 0.25]
    assert values.tolist() == [first, [-2.0, 3.0, -2.0, 127, -(2.0**63), 0, 0, -1e-10, -1, 0, 0]]


DATES = pa.table(
    {
        "fare": [1.0, None, float("nan"), 4.0, 5.0],
        "lat": [1.0, 2.0, 3.0, float("-inf"), 1e39],
        "hour": pa.array([1, 2, 3, 4, None], pa.int16()),
    }
)


@pytest.mark.parametrize(
    ("nulls", "words"),
    [
        ("raise", "row 2: column 'fare': the value is null; correct it"),
        ("raise,fare:drop", "row 4: column 'lat': '-inf' is infinite"),
        ("drop,hour:raise", "row 5: column 'hour': the value is null"),
    ],
)
def test_no_finite_number_is_located(tmp_path: Path, nulls: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 24)  # a row
    with pytest.raises(BadValueError, match=rf"^file://.*/part-00000\.parquet: {words}"):
        read_one(tmp_path, encoded(DATES), ["fare", "hour", "lat"], nulls)


def test_nulls_follow_the_policy(tmp_path: Path) -> None:
    names = ["fare", "lat", "hour"]
    dropped = read_one(tmp_path, encoded(DATES), names, "drop", np.float32)
    assert dropped.matrix.tolist() == [[1.0, 1.0, 1.0]]
    causes = {"fare": {"empty": 1, "NaN": 1}, "lat": {"infinite": 1, "too large": 1}, "hour": {"empty": 1}}
    assert dropped.causes == causes
    mixed = read_one(tmp_path, encoded(DATES), names, "fill=9,fare:drop")
    assert mixed.matrix.tolist() == [[1, 1, 1], [4, 9, 4], [5, 1e39, 9]]
    assert (mixed.filled, mixed.dropped) == (2, 2)


def test_columns_that_are_no_numbers_can_be_left_out_and_else_are_named(tmp_path: Path) -> None:
    table = pa.table(
        {
            "fare": [1.0, 2.0],
            "note": ["a", "b"],
            "trip": pa.array([{"fare": 7.0, "lat": 8.0}, None]),
            "tags": pa.array([[1.0], []], pa.list_(pa.float64())),
            "lat": [3.0, 4.0],
        }
    )
    assert read_one(tmp_path, encoded(table), ["lat", "fare"]).values.tolist() == [[3.0, 1.0], [4.0, 2.0]]
    store = open_store(str(tmp_path))
    parts = list_parts(str(tmp_path), store)
    assert list(count_rows(parts, store, part_schema(parts, store, "note", counting=True)).values()) == [2]
    for name, kind in (("note", "string"), ("trip", "struct<fare: double, lat: double>"), ("tags", "list<")):
        with pytest.raises(SchemaError) as caught:
            read_one(tmp_path, encoded(table), ["fare", name])
        assert f"part-00000.parquet: column {name!r} is {kind}" in str(caught.value)
        assert str(caught.value).endswith("these columns are numbers, dates or times: fare,lat")


def test_csv_and_parquet_parts_are_joined_by_name(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("x,id\n0,0\n0.5,1\n")
    (tmp_path / "part-00001.parquet").write_bytes(numbered(2, 3))
    store = open_store(str(tmp_path))
    assert np.concatenate([p.values for p in read(str(tmp_path), store)]).tolist() == [[i, i * 0.5] for i in range(5)]
    (tmp_path / "part-00002.parquet").write_bytes(encoded(pa.table({"id": [1.0], "y": [2.0]})))
    with pytest.raises(SchemaError, match=r"part-00002\.parquet: its header lacks column 'x' and has an extra"):
        read(str(tmp_path), store)
    assert count_rows(list_parts(str(tmp_path / "part-0000[01]*"), store), store, ID) == {
        f"file://{tmp_path}/part-00000.csv": 2,
        f"file://{tmp_path}/part-00001.parquet": 3,
    }


GOOD = numbered(0, 5000, row_group_size=1000, write_page_checksum=True)
FOOTER = (len(GOOD) - 8 - int.from_bytes(GOOD[-8:-4], "little"), int.from_bytes(GOOD[-8:-4], "little"))  # at, bytes


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (GOOD[:-1], r"it ends in .* and not as Parquet does: cut off"),
        (GOOD[: len(GOOD) // 2], r"it ends in .* and not as Parquet does: cut off"),
        (b"id,x\n1,2\n", r"it ends in b'1,2\\n' and not as Parquet does: cut off, or another format; make it again"),
        (b"PAR1", "it ends in"),
        (b"PAR1" + bytes(4) + b"PAR1", "pyarrow cannot read"),
        (GOOD[:-8] + b"\xff\xff\xff\x7fPAR1", "pyarrow cannot read"),
        (GOOD[:-4] + b"PARE", "its footer is encrypted, and there are no keys here; write it without encryption"),
        (GOOD[:3000] + bytes([GOOD[3000] ^ 1]) + GOOD[3001:], "pyarrow cannot read .*CRC.*damaged: make it again"),
        (GOOD[: FOOTER[0]] + bytes(FOOTER[1]) + GOOD[-8:], "pyarrow cannot read"),
    ],
)
def test_damaged_and_foreign_files(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "part-00000.parquet").write_bytes(data)
    with pytest.raises(DataError, match=rf"^file://.*part-00000\.parquet: {words}"):
        read(str(tmp_path), open_store(str(tmp_path)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(GOOD) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_never_ends_in_a_foreign_error(memory_store: Any, at: int, bit: int) -> None:
    """Checksums cover the pages. Of their headers and of the footer, some bits mean nothing, and some other numbers."""
    part = put(memory_store, GOOD[:at] + bytes([GOOD[at] ^ 1 << bit]) + GOOD[at + 1 :])
    try:
        found = sum(b.parsed.rows for b in read_blocks([part], memory_store, ID, NullPolicy(), threads=1))
    except DataError as error:
        found = 0 if part.uri in str(error) else -1
    assert found >= 0


def test_encrypted_columns(tmp_path: Path) -> None:
    import pyarrow.parquet.encryption as pe

    class Kms(pe.KmsClient):  # type: ignore[misc]
        def __init__(self, _: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, key: bytes, _: str) -> bytes:
            return base64.b64decode(key)

    config = pe.EncryptionConfiguration("footer", column_keys={"k": ["x"]}, plaintext_footer=True)
    keys = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), config)
    data = numbered(0, 10, encryption_properties=keys)
    assert read_one(tmp_path, data, ["id"]).values.tolist() == [[i] for i in range(10)]
    with pytest.raises(DataError, match=r"part-00000\.parquet: .*write it without encryption"):
        read_one(tmp_path, data, ["id", "x"])


def put(store: Any, data: bytes) -> Part:
    """A part in the memory store, which counts as remote."""
    return Part.of(store.put("mem://b/part-00000.parquet", data))


@pytest.fixture
def asked(memory_store: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that are asked of the memory store."""
    ranges: list[tuple[int, int]] = []
    plain = memory_store.read

    def read(info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        data: bytes = plain(info, start, length)
        ranges.append((start, start + len(data)))
        return data

    monkeypatch.setattr(memory_store, "read", read)
    return ranges


def wide(rows: int) -> bytes:
    """Ten columns of noise, three row groups."""
    noise = np.random.default_rng(0).random((10, rows))
    return encoded(pa.table({f"c{i}": noise[i] for i in range(10)}), row_group_size=-(-rows // 3), use_dictionary=False)


TEN = Schema(tuple(f"c{i}" for i in range(10)))


def test_an_object_gives_its_footer_and_the_wanted_columns_only(
    memory_store: Any, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_file, "HOLE_BYTES", 0)
    data = wide(90_000)
    part = put(memory_store, data)

    assert count_rows([part], memory_store, TEN) == {part.uri: 90_000}
    assert asked == [(len(data) - 65536, len(data))]

    schema = part_schema([part], memory_store, "c7", ["c2", "c3"])
    asked.clear()
    blocks = list(read_blocks([part], memory_store, schema, NullPolicy()))
    noise = np.random.default_rng(0).random((10, 90_000))
    assert np.array_equal(np.concatenate([b.parsed.values for b in blocks]), noise[[7, 2, 3]].T)
    chunks = [stop - start for start, stop in asked if stop < len(data)]
    assert len(chunks) == 6  # c2 and c3 lie side by side, in each of three groups
    assert 3 * 90_000 * 8 <= sum(chunks) < 3.2 * 90_000 * 8


def test_an_object_that_is_replaced_while_it_is_read(memory_store: Any) -> None:
    part = put(memory_store, wide(600_000))
    blocks = read_blocks([part], memory_store, TEN, NullPolicy(), threads=1)
    next(blocks)
    put(memory_store, wide(90_001))
    with pytest.raises(ChangedError):
        list(blocks)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow asks for the bytes here, and the error passes through it."""
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 16_000)
    (tmp_path / "part-00000.parquet").write_bytes(numbered(0, 100_000, row_group_size=10_000))
    store = open_store(str(tmp_path))
    blocks = read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy(), threads=1)
    next(blocks)
    (tmp_path / "part-00000.parquet").write_bytes(numbered(0, 99_000))
    with pytest.raises(ChangedError, match=r"part-00000\.parquet was changed"):
        list(blocks)


def test_from_s3(any_s3: Bucket) -> None:
    any_s3.put("pq/part-00000.parquet", numbered(0, 300_000, row_group_size=70_000))
    any_s3.put("pq/part-00001.parquet", numbered(300_000, 10))
    values = np.concatenate([parsed.values for parsed in read(any_s3.uri + "/pq", any_s3.store)])
    assert np.array_equal(values[:, 0], np.arange(300_010))
    assert np.array_equal(values[:, 1], np.arange(300_010) * 0.5)


def test_a_part_given_up_in_the_middle_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(parquet, "BLOCK_BYTES", 160)
    (tmp_path / "part-00000.parquet").write_bytes(numbered(0, 1000))
    store = open_store(str(tmp_path))
    blocks = read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy())
    next(blocks)
    blocks.close()
    assert [t for t in threading.enumerate() if t.name.startswith("cabrank-")] == []


EXITS = """
import os, sys
import pyarrow.parquet
from cabrank import ObjectStorageDataset
children = []
for turn in range(8):
    child = os.fork()
    if not child:
        data = iter(ObjectStorageDataset(sys.argv[1], batch_size=70_000))
        rows = len(next(data)) if turn % 2 else sum(map(len, data))
        sys.exit(0 if rows in (70_000, 200_000) else 1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_processes_end_cleanly_by_the_dozen(tmp_path: Path) -> None:
    """pyarrow's threads have aborted processes at their exit; here with torch, after a whole epoch and amid one."""
    (tmp_path / "part-00000.parquet").write_bytes(numbered(0, 200_000, row_group_size=50_000))
    run = subprocess.run(
        [sys.executable, "-c", EXITS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2] / "jobs",
    )
    assert run.stdout.strip() == str([0] * 8), run.stderr
