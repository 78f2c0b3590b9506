"""Statistics of another job, beside parts that fit them and parts that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cabrank import ObjectStorageDataset
from cabrank.commands import shard
from cabrank.config import ShardConfig
from cabrank.errors import MetadataError

SPARK = "summary,y,x\ncount,6,6\nmean,3.5,21.0\nstddev,1.87,11.2\nmin,1,6\n25%,2,12\nmax,6.0,36.0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part-00000.csv").write_text("y,x\n1,6\n2,12\n3,18\n")
    (tmp_path / "part-00001.csv").write_text("y,x\n4,24\n5,30\n6,36\n")
    (tmp_path / ".meta/stats").mkdir(parents=True)
    (tmp_path / ".meta/stats/part-00000-spark.csv").write_text(SPARK)
    return tmp_path


def read(folder: Path, **options: object) -> int:
    ds = ObjectStorageDataset(str(folder), batch_size=4, **options)  # type: ignore[arg-type]
    return sum(len(batch) for batch in ds)


def test_parts_that_fit_are_read_again_and_again(folder: Path) -> None:
    ds = ObjectStorageDataset(str(folder), batch_size=4, columns=["x"])
    assert [sum(len(batch) for batch in ds) for _ in range(3)] == [6, 6, 6]


@pytest.mark.parametrize(
    ("number", "text", "words"),
    [
        (1, "y,x\n4,24\n5,37\n6,36\n", r"part-00001\.csv: row 2: column 'x': 37\.0 is outside 5\.99.* to 36\.0"),
        (0, "y,x\n1,6\n0.5,12\n3,18\n", r"part-00000\.csv: row 2: column 'y': 0\.5 is outside"),
        (
            1,
            "y,x\n4,24\n5,30\n5,36\n",
            r"spark\.csv: column 'y': the mean of its 6 rows is 3\.5 there and 3\.33",
        ),
    ],
)
def test_a_broken_promise_is_located(folder: Path, number: int, text: str, words: str) -> None:
    (folder / f"part-{number:05d}.csv").write_text(text)
    with pytest.raises(MetadataError, match=words) as caught:
        read(folder)
    assert "cabrank shard" in str(caught.value)


def test_rows_that_are_dropped_are_not_held_to_it_and_keep_their_numbers(folder: Path) -> None:
    (folder / "part-00001.csv").write_text("y,x\n4,\n5,30\n6,99\n")
    with pytest.raises(MetadataError, match=r"row 3: column 'x': 99\.0"):
        read(folder, nulls="drop")
    (folder / "part-00001.csv").write_text("y,x\n4,\n5,30\n6,36\n")
    assert read(folder, nulls="drop") == 5


def test_what_shard_published_is_believed_of_the_same_bytes_only(folder: Path) -> None:
    shard.run(ShardConfig.of({"data": str(folder)}))
    assert read(folder) == 6
    (folder / "part-00001.csv").write_text("y,x\n4,24\n5,30\n7,36\n")
    with pytest.raises(MetadataError, match=r"row 3: column 'y': 7\.0 is outside"):
        read(folder)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("id,count\n1,2\n", "the header is 'id,count', not 'summary,…'"),
        ("summary,y,x\nmean,1,word\n", "no CSV table of statistics"),
        ("summary,y,x\nmean,1\n", "no CSV table of statistics"),
        ("summary,y,x\nmean,1,2\nmean,1,3\n", "a second mean of column 'x'"),
    ],
)
def test_malformed_statistics(folder: Path, table: str, words: str) -> None:
    (folder / ".meta/stats/part-00000-spark.csv").write_text(table)
    with pytest.raises(MetadataError, match=words):
        read(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_that_are_rounded_to_a_shorter_type_still_fit(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "part-00000.csv").write_text("y\n0.1\n0.3\n")
    (tmp_path / ".meta/stats").mkdir(parents=True)
    (tmp_path / ".meta/stats/part-0.csv").write_text("summary,y\ncount,2\nmean,0.2\nmin,0.1\nmax,0.3\n")
    assert read(tmp_path, dtype=dtype) == 2
