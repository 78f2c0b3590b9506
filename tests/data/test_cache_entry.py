"""The file of an entry: every fault of a disk is noticed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cabrank.data.cache_entry import (
    CHUNK_BYTES,
    CorruptEntryError,
    EntryWriter,
    Matrix,
    check_matrix,
    map_matrix,
    open_file,
    part_key,
    read_footer,
)

KEY = part_key("s3://bucket/part-00000.csv", "etag", ("label", "x", "y"), "raise", "float64", "pyarrow 26")
assert KEY is not None
SMALL = np.arange(150, dtype=np.float64).reshape(50, 3)


def write(path: Path, *blocks: Matrix, facts: dict[str, object] | None = None) -> None:
    assert KEY is not None
    with path.open("wb") as file:
        writer = EntryWriter(file)
        for block in blocks:
            writer.add(block)
        shape = (sum(map(len, blocks)), blocks[0].shape[1])
        writer.finish(KEY.digest, KEY.uri, shape, blocks[0].dtype.str, facts or {})


def read(path: Path) -> Matrix:
    with open_file(path) as file:
        footer = read_footer(file)
        check_matrix(file, footer)
        return map_matrix(file, footer)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cuts", [(), (1,), (7, 7, 100_000), (200_001,)])
def test_blocks_come_back_as_one_matrix(tmp_path: Path, dtype: type, cuts: tuple[int, ...]) -> None:
    matrix: Matrix = (
        np.random.default_rng(0).random((250_001, 3)).astype(dtype)
    )  # more than one chunk, and no multiple of one
    assert matrix.nbytes % CHUNK_BYTES
    write(tmp_path / "e", *np.split(matrix, cuts))
    assert np.array_equal(read(tmp_path / "e"), matrix)
    whole = (tmp_path / "e").read_bytes()
    write(tmp_path / "whole", matrix)
    assert whole == (tmp_path / "whole").read_bytes()  # how it was cut does not matter


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 0), (CHUNK_BYTES // 8, 1), (CHUNK_BYTES // 8 + 1, 1)])
def test_odd_shapes(tmp_path: Path, shape: tuple[int, int]) -> None:
    write(tmp_path / "e", np.ones(shape))
    assert read(tmp_path / "e").shape == shape


def test_the_matrix_is_the_file_s_bytes_from_4096_on(tmp_path: Path) -> None:
    write(tmp_path / "e", SMALL)
    assert (tmp_path / "e").read_bytes()[4096 : 4096 + 1200] == SMALL.tobytes()


def test_a_file_with_room_to_spare_is_cut(tmp_path: Path) -> None:
    write(tmp_path / "e", SMALL)
    with (tmp_path / "f").open("wb") as file:
        file.truncate(100_000)
    with (tmp_path / "f").open("rb+") as file:
        assert KEY is not None
        writer = EntryWriter(file)
        writer.add(SMALL)
        writer.finish(KEY.digest, KEY.uri, (50, 3), "<f8", {})
    assert (tmp_path / "f").read_bytes() == (tmp_path / "e").read_bytes()


def test_truncation_anywhere_and_growth_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "e"
    write(path, SMALL)
    whole = path.read_bytes()
    places = {0, 1, 7, 8, 12, 15, 16, 17, 4095, 4096, 4097, 4800, 5295, 5296, 5297, len(whole) - 1}
    for size in sorted(places):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptEntryError):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptEntryError):
        read(path)
    path.write_bytes(whole)
    assert np.array_equal(read(path), SMALL)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_noticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "e"
    write(path, SMALL, facts={"rows": 50, "dropped": {"empty": 2}})
    damaged = bytearray(path.read_bytes())
    for bit in data.draw(st.sets(st.integers(0, len(damaged) * 8 - 1), min_size=1, max_size=4)):
        damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with pytest.raises(CorruptEntryError):
        read(path)


@pytest.mark.parametrize("fault", ["zeros", "swapped", "far swapped", "shifted", "repeated"])
def test_pages_that_are_wrong_are_noticed(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "e"
    write(path, np.random.default_rng(1).random((300_000, 3)))
    pages = [path.read_bytes()[at : at + 4096] for at in range(0, path.stat().st_size, 4096)]
    match fault:
        case "zeros":
            pages[100] = bytes(4096)
        case "swapped":
            pages[100], pages[101] = pages[101], pages[100]
        case "far swapped":
            pages[100], pages[1500] = pages[1500], pages[100]
        case "shifted":
            pages[1:1500] = pages[2:1500] + pages[1:2]
        case "repeated":
            pages[100] = pages[99]
    path.write_bytes(b"".join(pages))
    with pytest.raises(CorruptEntryError, match="checksum"):
        read(path)


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe", "socket"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "e"
    write(tmp_path / "real", SMALL)
    match kind:
        case "link":
            path.symlink_to(tmp_path / "real")
        case "dangling link":
            path.symlink_to(tmp_path / "nothing")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
    with pytest.raises(CorruptEntryError, match="no regular file"):
        open_file(path)


def test_another_version_or_byte_order_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "e"
    write(path, SMALL)
    whole = path.read_bytes()
    path.write_bytes(whole[:7] + b"\x02" + whole[8:])
    with pytest.raises(CorruptEntryError, match="format 1"):
        read(path)
    write(path, SMALL.astype(">f8"))
    with pytest.raises(CorruptEntryError, match=">f8"):
        read(path)


def test_every_fact_that_values_follow_from_is_in_the_key() -> None:
    base = ("s3://b/k", "etag", ("a", "b"), "raise", "float64", "pyarrow 26")
    others = [
        ("s3://b/l", *base[1:]),
        (base[0], "etag2", *base[2:]),
        (*base[:2], ("b", "a"), *base[3:]),
        (*base[:2], ("a,b",), *base[3:]),
        (*base[:3], "fill=0", *base[4:]),
        (*base[:4], "float32", base[5]),
        (*base[:5], "pyarrow 27"),
        ("s3://b/ketag", "etag", *base[2:]),
    ]
    keys = [part_key(*facts) for facts in [base, *others]]
    assert len({key.digest for key in keys if key}) == len(others) + 1
    assert part_key(*base) == keys[0]


def test_what_has_no_pin_has_no_key() -> None:
    assert part_key("https://h/a.csv", "", ("a",), "raise", "float64", "p") is None
    assert part_key("https://h/a.csv", 'W/"x"', ("a",), "raise", "float64", "p") is None
