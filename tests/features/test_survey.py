"""Reading tables as text, and knowing them by a sample and a sketch: nothing lost, nothing unbounded."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cabrank.data.listing import list_parts
from cabrank.data.reading import part_schema
from cabrank.errors import SchemaError
from cabrank.features.survey import RowSketch, row_hash, survey
from cabrank.features.text import text_hash
from cabrank.store import open_store


def whole(folder: Path, sample_rows: int = 1000, seed: int = 0) -> tuple[list[dict[str, str | None]], dict[str, int]]:
    store = open_store(str(folder))
    parts = list_parts(str(folder), store)
    found = survey(parts, store, part_schema(parts, store, counting=True), sample_rows=sample_rows, seed=seed)
    return found.sample.to_pylist(), found.missing


def test_text_comes_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_bytes(
        b'\xef\xbb\xbfzip,note\r\n02139,"a, ""b""\nc"\r\n 10001 ,\r\nNA,K\xc3\xb6ln\r\n'
    )
    with gzip.open(tmp_path / "part-00001.csv.gz", "wt") as file:
        file.write("note,zip\nlast,00501")  # another order, no newline at the end
    rows, missing = whole(tmp_path)
    assert rows == [
        {"zip": "02139", "note": 'a, "b"\nc'},
        {"zip": "10001", "note": None},
        {"zip": None, "note": "Köln"},
        {"zip": "00501", "note": "last"},
    ]
    assert missing == {"zip": 1, "note": 1}


def test_parquet_is_spelled_out(tmp_path: Path) -> None:
    columns = {"zip": ["02139", None], "n": [1, 2], "x": [0.5, None], "day": [date(2020, 2, 29), None]}
    pq.write_table(pa.table(columns), tmp_path / "part-00000.parquet")
    rows, missing = whole(tmp_path)
    assert rows == [
        {"zip": "02139", "n": "1", "x": "0.5", "day": "2020-02-29"},
        {"zip": None, "n": "2", "x": None, "day": None},
    ]
    assert missing == {"zip": 1, "n": 0, "x": 1, "day": 1}
    pq.write_table(pa.table({"zip": ["1"], "pair": [[1, 2]]}), tmp_path / "part-00000.parquet")
    with pytest.raises(SchemaError, match=r"column 'pair' is list.*, which cannot be written as text"):
        whole(tmp_path)


def test_what_is_no_table_is_located(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_bytes(b"a,b\n1,x\n2,\xe9\n")
    with pytest.raises(SchemaError, match=r"part-00000\.csv: row 1: .*is it UTF-8 text\?"):
        whole(tmp_path)


def test_hashes_tell_texts_and_rows_apart_and_nothing_else() -> None:
    texts = ["", None, "a", "b", "ab", "ba", "a\0", "0", "00", "x" * 5000, "x" * 5001]
    hashes = text_hash(pa.array(texts))
    assert len(set(hashes.tolist())) == len(texts)
    assert text_hash(pa.array([*texts, *texts]))[len(texts) :].tolist() == hashes.tolist()
    assert text_hash(pa.array(texts).slice(3, 4)).tolist() == hashes[3:7].tolist()
    one, other = pa.table({"p": ["1", "2"], "q": ["2", "1"]}), pa.table({"q": ["2", "1"], "p": ["1", "2"]})
    assert row_hash(one).tolist() == row_hash(other).tolist()
    assert len(set(row_hash(one).tolist())) == 2


def test_a_sample_is_as_likely_to_hold_any_row(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("n\n" + "\n".join(map(str, range(200))) + "\n")
    hits = np.zeros(200)
    for seed in range(400):
        rows, _ = whole(tmp_path, sample_rows=50, seed=seed)
        places = [int(str(row["n"])) for row in rows]
        assert places == sorted(set(places))
        assert len(places) == 50
        hits[places] += 1
    assert np.abs(hits - 100).max() < 5 * (400 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize(("size", "tolerance"), [(100_000, 0.0), (500, 0.06)])
def test_the_sketch_finds_shared_and_repeated_rows(size: int, tolerance: float) -> None:
    draw = np.random.default_rng(5)
    train = draw.integers(2**64, size=20_000, dtype=np.uint64)
    test = np.concatenate([train[:1000], draw.integers(2**64, size=4000, dtype=np.uint64)])
    sketches = RowSketch(size), RowSketch(size)
    for sketch, rows in zip(sketches, (np.concatenate([train, train[:5000]]), test), strict=True):
        for piece in np.array_split(draw.permutation(rows), 7):
            sketch.add(piece)
        assert len(sketch.hashes) <= size
    assert sketches[1].shared_with(sketches[0]) == pytest.approx(0.2, abs=tolerance)
    assert sketches[0].repeated == pytest.approx(10_000 / 25_000, abs=tolerance)
    assert sketches[0].whole == (size == 100_000)
