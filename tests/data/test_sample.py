"""The sample: stable bytes, values in the published ranges, fares that follow the tariff, memory that does not grow."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cabrank.data import sample
from cabrank.errors import ConfigError
from cabrank.store import Store

FOLDER = "mem://bucket/csv/dev/"
HEADER = (
    b"fareamount_double,origin_block_latitude_double,origin_block_longitude_double,destination_block_latitude_double,"
    b"destination_block_longitude_double,year_integer,month_integer,dow_integer,hour_integer\n"
)


def text_of(rows: int, seed: int = 0, part: int = 0, chunk_rows: int = sample.CHUNK_ROWS) -> bytes:
    return b"".join(text for _, text in sample.trips(rows, seed, part, chunk_rows))


def matrix_of(text: bytes) -> NDArray[np.float64]:
    return np.array([line.split(b",") for line in text.splitlines()], dtype=np.float64)


@pytest.fixture(scope="module")
def trips() -> NDArray[np.float64]:
    return matrix_of(text_of(100_000))


def write(store: Store, rows: int, parts: int, seed: int) -> None:
    for _ in sample.write_sample(store, FOLDER, rows, parts, seed):
        pass


def test_the_bytes_of_a_seed_never_change() -> None:
    """A digest recorded once: another numpy, processor or chunk size must give the same one."""
    assert hashlib.sha256(text_of(10_000, seed=7, part=3)).hexdigest() == (
        "2339036cb012aecf1ad6e9704ad8f4aa616df18e44c830ab1580cb4c6ae82351"
    )


def test_the_first_line_by_the_tariff() -> None:
    """Worked by hand from the line's own coordinates: 4.98 miles as the crow flies."""
    fare, *place = (float(field) for field in text_of(1).split(b",")[:5])
    north, east = (place[0] - place[2]) * 68.98, (place[1] - place[3]) * 53.90
    crow = (north**2 + east**2) ** 0.5
    least = 3.25 + 0.27 * (crow * 1.15 * 8 - 1)
    assert least <= fare <= 3.25 + 0.27 * crow * 1.45 * 8 + 12 * 35 / 60


@pytest.mark.parametrize("chunk_rows", [1, 7, 999, 1000, 1001])
def test_chunks_do_not_show(chunk_rows: int) -> None:
    assert text_of(1000, chunk_rows=chunk_rows) == text_of(1000)


def test_seeds_and_parts_differ() -> None:
    texts = {text_of(50, seed, part) for seed in range(4) for part in range(4)}
    assert len(texts) == 16


def test_every_field_is_written_as_in_the_published_files(trips: NDArray[np.float64]) -> None:
    line = re.compile(rb"\d{1,2}\.\d{1,2},(38\.\d{1,6},-7[67]\.\d{1,6},){2}201[5-9],(1?\d),[1-7],(1?\d|2[0-3])")
    lines = text_of(5000).splitlines()
    assert len(lines) == 5000
    assert all(line.fullmatch(found) for found in lines)


def test_ranges(trips: NDArray[np.float64]) -> None:
    low, high = trips.min(axis=0), trips.max(axis=0)
    assert (low >= [3.25, 38.81138, -77.113633, 38.81138, -77.113633, 2015, 1, 1, 0]).all()
    assert (high <= [100, 38.994909, -76.910012, 38.994909, -76.910012, 2019, 12, 7, 23]).all()
    assert (low[5:] == [2015, 1, 1, 0]).all()
    assert (high[5:] == [2019, 12, 7, 23]).all()


def test_fares_follow_distance(trips: NDArray[np.float64]) -> None:
    """Least squares on the haversine distance alone has less than half the error of one on the eight raw columns."""
    fare, (lat1, lon1, lat2, lon2) = trips[:, 0], np.radians(trips[:, 1:5]).T
    chord = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    miles = 2 * 3958.8 * np.arcsin(np.sqrt(chord))

    def rmse(features: NDArray[np.float64]) -> float:
        centred = np.column_stack([np.ones(len(fare)), features - features.mean(axis=0)])
        weights = np.linalg.lstsq(centred, fare, rcond=None)[0]
        return float(np.sqrt(np.mean((centred @ weights - fare) ** 2)))

    assert rmse(miles[:, None]) < 0.4 * rmse(trips[:, 1:])
    assert 10 < fare.mean() < 15


def test_the_city_has_a_centre_days_and_nights(trips: NDArray[np.float64]) -> None:
    inner = (abs(trips[:, 1] - 38.903) < 0.0459) & (abs(trips[:, 2] + 77.012) < 0.0509)  # a quarter of the area
    assert inner.mean() > 0.6
    hours = np.bincount(trips[:, 8].astype(int), minlength=24)
    assert hours[8:20].min() > 3 * hours[2:5].max()
    assert (np.bincount(trips[:, 7].astype(int))[1:] > 0).all()


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (10, 3), (2, 5), (100, 12)])
def test_parts_are_equal_within_a_row(memory_store: Any, rows: int, parts: int) -> None:
    write(memory_store, rows, parts, seed=1)
    objects = {uri: data for uri, data in memory_store.objects.items() if not uri.endswith("/_SUCCESS")}
    assert len(objects) == parts
    counts = [data.count(b"\n") - 1 for data in objects.values()]
    assert sum(counts) == rows
    assert max(counts) - min(counts) <= 1
    assert all(data.startswith(HEADER) for data in objects.values())


def test_names_are_sparks_and_one_run_has_one_id(memory_store: Any) -> None:
    write(memory_store, 10, 11, seed=5)
    names = [uri.removeprefix(FOLDER) for uri in memory_store.objects]
    matches = [re.fullmatch(r"part-(\d{5})-([0-9a-f]{32})-c000\.csv", name) for name in names]
    assert [int(m[1]) for m in matches if m] == list(range(11))
    assert len({m[2] for m in matches if m}) == 1


def test_same_seed_same_objects_and_another_seed_is_refused(memory_store: Any) -> None:
    write(memory_store, 100, 4, seed=1)
    before = dict(memory_store.objects)
    write(memory_store, 100, 4, seed=1)
    assert memory_store.objects == before
    with pytest.raises(
        ConfigError, match=r"mem://bucket/csv/dev/ already holds part-00000-\w{32}-c000.csv.* and 1 more"
    ):
        write(memory_store, 100, 4, seed=2)
    with pytest.raises(ConfigError, match="part-00003"):  # fewer parts would leave an old one among the new
        write(memory_store, 100, 3, seed=1)
    assert memory_store.objects == before


def test_metadata_markers_and_other_folders_are_no_strangers(memory_store: Any) -> None:
    for name in ("_SUCCESS", ".part-00000.csv.crc", ".meta/shards/part-00000.csv", "other/part-00000-x-c000.csv"):
        memory_store.put(FOLDER + name, b"x")
    write(memory_store, 3, 1, seed=1)


def test_memory_does_not_grow_with_rows() -> None:
    """Peak of allocations over the tables', for one part of 2 chunks and of 12."""
    text_of(1)
    peaks = []
    for chunks in (2, 12):
        tracemalloc.start()
        for _ in sample.trips(chunks * sample.CHUNK_ROWS, 0, 0):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
