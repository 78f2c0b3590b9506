"""Blocks: every row once and in order, wherever blocks are cut, for plain and compressed parts, and located faults."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabrank.data import csv_text
from cabrank.data.csv_text import cut_block
from cabrank.data.listing import Part, list_parts
from cabrank.data.parse import Schema
from cabrank.data.reading import count_rows, read_blocks
from cabrank.data.sources import BufferSource, unpacked
from cabrank.errors import BadValueError, ChangedError, DataError, SchemaError
from cabrank.nulls import NullPolicy
from cabrank.store import ObjectInfo, open_store

ID = Schema(("id", "x"))


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


PACK: dict[str, Callable[[bytes], bytes]] = {".csv": bytes, ".csv.gz": gzip.compress, ".csv.zst": zstd}


def rows_of(folder: Path, schema: Schema = ID, **options: object) -> list[list[float]]:
    store = open_store(str(folder))
    parts = list_parts(str(folder), store)
    blocks = read_blocks(parts, store, schema, NullPolicy.of("raise"), **options)  # type: ignore[arg-type]
    return [row for block in blocks for row in block.parsed.values.tolist()]


def write(folder: Path, counts: list[int], ending: str = ".csv") -> list[list[float]]:
    """Parts of `counts` rows, numbered through; returns the rows."""
    expected, row = [], 0
    for number, count in enumerate(counts):
        lines = [f"{row + i},{(row + i) * 0.5}" for i in range(count)]
        data = "\n".join(["id,x", *lines]).encode() + (b"\n" if number % 2 else b"")
        path = folder / f"part-{number:05d}-a-c000{ending}"
        path.write_bytes(PACK[ending](data))
        expected += [[float(row + i), (row + i) * 0.5] for i in range(count)]
        row += count
    return expected


@pytest.mark.parametrize("ending", list(PACK))
@pytest.mark.parametrize("block_bytes", [16, 64, 1000, 1 << 22])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_row_in_order_wherever_the_blocks_are_cut(
    tmp_path: Path, ending: str, block_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (block_bytes,))
    expected = write(tmp_path, [100, 1, 0, 57, 0, 333], ending)
    assert rows_of(tmp_path, threads=threads) == expected


def test_the_last_block_says_how_many_rows_the_part_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (50,))
    write(tmp_path, [100, 0, 57])
    store = open_store(str(tmp_path))
    blocks = list(read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy()))
    assert [(b.place, b.end_row) for b in blocks if b.last] == [(0, 100), (1, 0), (2, 57)]
    assert len(blocks) > 10


def test_nothing_behind_the_stops_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (50,))
    write(tmp_path, [1000, 1000])
    with (tmp_path / "part-00000-a-c000.csv").open("ab") as file:
        file.write(b"\nno,number\n")  # far behind the stop
    store = open_store(str(tmp_path))
    blocks = list(read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy(), stops=[5, 20], threads=1))
    assert [b.end_row for b in blocks if b.place == 0][-1] in range(5, 20)
    assert [b.end_row for b in blocks if b.place == 1][-1] in range(20, 40)
    assert blocks[-1].parsed.values[0, 0] >= 1000


FIELD = st.one_of(
    st.integers(-99, 99).map(str),
    st.sampled_from(["7", '"8"', "9.5", " 1", '"2"']),
)
NOTE = st.sampled_from(["", "a", '"b,c"', '"d\ne"', '"f""g"', '"\n"', '""', '"h\r\ni"'])
ROW = st.tuples(FIELD, NOTE, FIELD).map(",".join)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    end=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
    size=st.integers(1, 60),
)
def test_no_row_is_torn_by_quotes_that_hold_newlines(rows: list[str], end: str, final: bool, size: int) -> None:
    data = (end.join(rows) + (end if final else "")).encode()
    source, start, blocks, last = BufferSource(memoryview(data)), 0, [], False
    while not last:
        block, last = cut_block(source, start, size)
        start += len(block)
        blocks.append(bytes(block).decode())
    assert "".join(blocks).encode() == data
    whole = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert [row for block in blocks for row in csv.reader(io.StringIO(block, newline=""))] == whole


def test_text_columns_with_newlines_beside_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (30,))
    lines = [f'{i},"line one\nline, ""two"" {i}",{i}.5' for i in range(50)]
    (tmp_path / "part-00000.csv").write_text("id,note,x\n" + "\n".join(lines))
    got = rows_of(tmp_path, Schema(("id", "x"), ("id", "note", "x")))
    assert got == [[float(i), i + 0.5] for i in range(50)]


def test_columns_in_another_order_are_joined_by_name(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("id,x\n1,10\n")
    (tmp_path / "part-00001.csv").write_text("x,id\n20,2\n")
    assert rows_of(tmp_path) == [[1.0, 10.0], [2.0, 20.0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id\n1\n", "lacks column 'x'"),
        ("id,x,y\n1,2,3\n", "has an extra column 'y'"),
        ("id,y\n1,2\n", "lacks column 'x' and has an extra column 'y'"),
        ("3,4\n1,2\n", "the first row is '3,4' and not a header"),
    ],
)
def test_a_part_with_other_columns(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "part-00000.csv").write_text("id,x\n1,10\n")
    (tmp_path / "part-00001.csv").write_text(text)
    with pytest.raises(SchemaError, match=rf"file://.*part-00001\.csv: .*{words}"):
        rows_of(tmp_path)


def test_a_fault_is_located_behind_many_blocks_and_the_rows_before_it_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (40,))
    write(tmp_path, [100, 300])
    path = tmp_path / "part-00001-a-c000.csv"
    lines = path.read_text().splitlines()
    lines[251] = "351,many"
    path.write_text("\n".join(lines))
    store = open_store(str(tmp_path))
    seen: list[int] = []
    blocks = read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy())
    with pytest.raises(BadValueError, match=r"part-00001-a-c000\.csv: row 251: column 'x': 'many' is no number"):
        seen.extend(block.parsed.rows for block in blocks)
    assert 340 <= sum(seen) <= 350


def test_a_file_replaced_after_the_listing(tmp_path: Path) -> None:
    write(tmp_path, [10, 10])
    store = open_store(str(tmp_path))
    parts = list_parts(str(tmp_path), store)
    (tmp_path / "part-00001-a-c000.csv").write_text("id,x\n1,2\n")
    with pytest.raises(ChangedError, match=r"part-00001-a-c000\.csv"):
        list(read_blocks(parts, store, ID, NullPolicy()))


def test_iteration_given_up_leaves_no_thread(tmp_path: Path) -> None:
    import threading

    write(tmp_path, [1000, 1000])
    store = open_store(str(tmp_path))
    blocks = read_blocks(list_parts(str(tmp_path), store), store, ID, NullPolicy())
    next(blocks)
    blocks.close()
    assert [t for t in threading.enumerate() if t.name.startswith("cabrank-")] == []


def inflated(data: bytes, size: int, ending: str = ".gz") -> bytes:
    part = Part(ObjectInfo("u" + ending, len(data)), None)
    source, out = unpacked(BufferSource(memoryview(data)), part), b""
    while window := source.window(len(out), size):
        out += bytes(window)
    return out


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_gzip_members_may_end_anywhere_and_zeros_may_pad(size: int) -> None:
    text = b"".join(b"%d,%d\n" % (i, i * i) for i in range(200))
    members = gzip.compress(text[:101]) + gzip.compress(b"") + b"\0" * 17 + gzip.compress(text[101:]) + b"\0" * 512
    assert inflated(members, size) == text


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_zstd_frames_may_end_anywhere_and_some_hold_no_data(size: int) -> None:
    text = b"".join(b"%d,%d\n" % (i, i * i) for i in range(200))
    skippable = bytes.fromhex("502a4d18 05000000") + b"seek\n"
    assert inflated(zstd(text[:101]) + zstd(b"") + skippable + zstd(text[101:]), size, ".zst") == text


@pytest.mark.parametrize(("pack", "ending"), [(partial(gzip.compress, compresslevel=1), ".gz"), (zstd, ".zst")])
def test_more_than_the_buffers(pack: Callable[[bytes], bytes], ending: str) -> None:
    text = np.random.default_rng(0).integers(0, 256, 5 << 20, np.uint8).tobytes() + b"0" * (20 << 20)
    assert inflated(pack(text), 3 << 20, ending) == text


GZ, ZST = gzip.compress(b"1,2\n" * 1000), zstd(b"1,2\n" * 1000)


@pytest.mark.parametrize(
    ("ending", "data", "words"),
    [
        (".gz", GZ[:-5], "the gzip file ends in the middle"),
        (".gz", GZ[:20] + bytes([GZ[20] ^ 255]) + GZ[21:], "no gzip data"),
        (".gz", b"id,x\n1,2\n", "no gzip data"),
        (".gz", GZ + b"more", "no gzip data"),
        (".zst", ZST[:-3], "the zstd file ends in the middle"),
        (".zst", ZST[:5], "the zstd file ends in the middle"),
        (".zst", ZST + ZST[:-1], "the zstd file ends in the middle"),
        (".zst", ZST[:15] + bytes([ZST[15] ^ 255]) + ZST[16:], "the zstd file is damaged, or none"),
        (".zst", b"id,x\n1,2\n", "the zstd file is damaged, or none"),
        (".zst", ZST + b"more", "the zstd file is damaged, or none"),
    ],
)
def test_damaged_and_foreign_files(ending: str, data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=rf"u\{ending}: {words}.*make"):
        inflated(data, 100, ending)


def test_a_store_that_fails_amid_a_compressed_file_says_so_itself() -> None:
    class Gone:
        def window(self, start: int, size: int) -> memoryview:
            raise ChangedError("replaced meanwhile")

    for ending in (".gz", ".zst"):
        with pytest.raises(ChangedError, match="replaced meanwhile"):
            unpacked(Gone(), Part(ObjectInfo("u" + ending, 9), None)).window(0, 10)


def test_counting_reads_every_row(tmp_path: Path) -> None:
    write(tmp_path, [10, 0, 7], ".csv.zst")
    store = open_store(str(tmp_path))
    parts = list_parts(str(tmp_path), store)
    counts = count_rows(parts, store, Schema(("x", "id")))
    assert [counts[part.uri] for part in parts] == [10, 0, 7]
