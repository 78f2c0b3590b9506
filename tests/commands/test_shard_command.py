"""`cabrank shard` on real files: numpy's values, nothing read or written twice, whole folders."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabrank.commands import sample, shard
from cabrank.config import SampleConfig, ShardConfig
from cabrank.data.listing import list_parts
from cabrank.data.metadata import read_counts
from cabrank.errors import BadValueError, ConfigError, SchemaError
from cabrank.store import open_store


@pytest.fixture
def trips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """2,500 trips in four parts of 625."""
    sample.run(SampleConfig(dest=str(tmp_path), rows=2500, parts=4, seed=1))
    capsys.readouterr()
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the job and gives what it said: one dict a folder."""

    def run(data: object, nulls: str = "raise") -> list[dict[str, Any]]:
        shard.run(ShardConfig(data=str(data), nulls=nulls))
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [line for line in lines if line.get("event") == "shard"]

    return run


def parts_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.startswith("part-"))


def table(folder: Path, kind: str) -> list[list[str]]:
    (path,) = (folder / ".meta" / kind).iterdir()
    with path.open(newline="") as file:
        return list(csv.reader(file))


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in (folder / ".meta").rglob("*") if p.is_file()}


def test_counts_and_statistics_are_numpys(trips: Path, run: Any) -> None:
    (said,) = run(trips)
    rows = np.vstack([np.loadtxt(path, delimiter=",", skiprows=1) for path in parts_in(trips)])
    assert table(trips, "shards") == [["id", "count"], *[[str(i), "625"] for i in range(4)]]
    summary = {name: [float(value) for value in values] for name, *values in table(trips, "stats")[1:]}
    assert list(summary) == ["count", "mean", "stddev", "min", "max"]
    assert summary["count"] == [2500.0] * 9
    np.testing.assert_allclose(summary["mean"], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(summary["stddev"], rows.std(axis=0, ddof=1), rtol=1e-12)
    assert summary["min"] == rows.min(axis=0).tolist()
    assert summary["max"] == rows.max(axis=0).tolist()
    assert table(trips, "stats")[0] == ["summary", *parts_in(trips)[0].read_text().split("\n")[0].split(",")]
    assert (said["rows"], said["parts"], said["parts_read"], said["published"]) == (2500, 4, 4, True)
    store = open_store(str(trips))
    assert list(read_counts(list_parts(str(trips), store), store).values()) == [625] * 4


def test_again_changes_nothing_and_reads_nothing(trips: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(trips)
    before = state(trips)
    monkeypatch.setattr(shard, "read_blocks", None)  # a read would fail
    (said,) = run(trips)
    assert (said["parts_read"], said["rows"], said["published"]) == (0, 2500, False)
    assert state(trips) == before


def test_only_a_changed_part_is_read_again(trips: Path, run: Any) -> None:
    run(trips)
    changed = parts_in(trips)[2]
    lines = changed.read_text().splitlines(keepends=True)
    changed.write_text("".join(lines[:101]))
    (said,) = run(trips)
    assert (said["parts_read"], said["rows"], said["published"]) == (1, 1975, True)
    incremental = table(trips, "stats")
    for path in (trips / ".meta").rglob("*.*"):
        path.unlink()
    (said,) = run(trips)
    assert said["parts_read"] == 4
    assert table(trips, "stats") == incremental
    assert table(trips, "shards")[3] == ["2", "100"]


def test_a_part_removed_is_forgotten(trips: Path, run: Any) -> None:
    run(trips)
    parts_in(trips)[0].unlink()
    (said,) = run(trips)
    assert (said["parts_read"], said["rows"]) == (0, 1875)
    assert [row[0] for row in table(trips, "shards")] == ["id", "1", "2", "3"]


def test_touched_but_equal_bytes_are_read_again(trips: Path, run: Any) -> None:
    """A file has no ETag: its time of change is all there is to go by."""
    run(trips)
    os.utime(parts_in(trips)[0], (1, 1))
    assert run(trips)[0]["parts_read"] == 1


def test_a_glob_of_some_parts_describes_the_whole_folder(
    trips: Path, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (trips / "README.md").write_text("about these trips\n")
    (said,) = run(f"{trips}/part-00001-*.csv")
    assert (said["parts"], said["rows"]) == (4, 2500)
    assert "3 parts beside the named ones" in caplog.text


def test_folders_get_their_own(tmp_path: Path, run: Any) -> None:
    for year, rows in ((2018, 10), (2019, 20)):
        sample.run(SampleConfig(dest=f"{tmp_path}/year={year}", rows=rows, parts=1, seed=year))
    assert [line["rows"] for line in run(f"{tmp_path}/year=*/*.csv")] == [10, 20]
    assert table(tmp_path / "year=2018", "shards")[1] == ["0", "10"]
    assert table(tmp_path / "year=2019", "shards")[1] == ["0", "20"]


def test_nulls(tmp_path: Path, run: Any) -> None:
    (tmp_path / "part-00000.csv").write_text("a,b\n1,10\n,20\n3,60\n")
    with pytest.raises(BadValueError, match=r"part-00000\.csv: row 2: column 'a'"):
        run(tmp_path)
    assert not (tmp_path / ".meta").exists()
    (said,) = run(tmp_path, "drop")
    assert (said["rows"], said["dropped"]) == (3, 1)
    assert table(tmp_path, "shards") == [["id", "count"], ["0", "3"]]  # rows of the file, whatever a reader leaves out
    assert table(tmp_path, "stats")[1:3] == [["count", "2", "2"], ["mean", "2.0", "35.0"]]
    run(tmp_path, "fill=8")
    assert table(tmp_path, "stats")[1:3] == [["count", "3", "3"], ["mean", "4.0", "30.0"]]


def test_header_only_and_one_row(tmp_path: Path, run: Any) -> None:
    (tmp_path / "part-00000.csv").write_text("a,b\n")
    (said,) = run(tmp_path)
    assert said["rows"] == 0
    assert table(tmp_path, "shards") == [["id", "count"]]
    assert table(tmp_path, "stats")[1:3] == [["count", "0", "0"], ["mean", "", ""]]
    (tmp_path / "part-00001.csv").write_text("a,b\n4,5\n")
    run(tmp_path)
    assert table(tmp_path, "stats")[2:] == [
        ["mean", "4.0", "5.0"],
        ["stddev", "", ""],
        ["min", "4.0", "5.0"],
        ["max", "4.0", "5.0"],
    ]


def test_names_without_numbers_are_known_by_name(tmp_path: Path, run: Any) -> None:
    (tmp_path / "train.csv").write_text("a,b\n1,2\n3,4\n")
    run(tmp_path)
    assert table(tmp_path, "shards") == [["id", "count"]]
    store = open_store(str(tmp_path))
    assert list(read_counts(list_parts(str(tmp_path), store), store).values()) == [2]


def test_unreadable_metadata_is_written_anew(trips: Path, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    run(trips)
    good = {name: data for name, (_, data) in state(trips).items()}
    (trips / ".meta" / "plan.json").write_text("{")
    run(trips)
    assert {name: data for name, (_, data) in state(trips).items()} == good
    assert "writing it anew" in caplog.text


def test_a_bad_part_leaves_the_old_metadata(trips: Path, run: Any) -> None:
    run(trips)
    before = state(trips)
    (trips / "part-00009-x.csv").write_text("other,columns\n1,2\n")
    with pytest.raises(SchemaError, match="part-00009"):
        run(trips)
    assert state(trips) == before


def test_a_web_server_cannot_be_written_to(run: Any) -> None:
    with pytest.raises(ConfigError, match=r"https://example\.org/csv/: web servers are only read"):
        run("https://example.org/csv/")


def test_a_terminal_gets_tables(
    trips: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    shard.run(ShardConfig(data=str(trips)))
    out = capsys.readouterr().out
    assert "2,500 rows" in out
    assert "stddev" in out
    assert "fareamount_double" in out


def test_one_file_of_a_folder_keeps_what_is_known_of_the_others(tmp_path: Path, run: Any) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("y,x\n" + "1,2\n" * (ord(name) - 96))
    (said,) = run(f"{tmp_path}/*.csv")
    assert (said["parts"], said["rows"], said["parts_read"]) == (3, 6, 3)
    (tmp_path / "a.csv").write_text("y,x\n" + "1,2\n" * 10)
    (tmp_path / "d.csv").write_text("other\n")
    (said,) = run(tmp_path / "a.csv")
    assert (said["parts"], said["rows"], said["parts_read"]) == (3, 15, 1)


def test_parts_that_the_count_table_leaves_out_are_named(
    tmp_path: Path, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cabrank")
    (tmp_path / "a.csv").write_text("y,x\n1,2\n")
    run(tmp_path)
    assert any("a.csv" in message and "part-00007" in message for message in caplog.messages)
    parts = list_parts(str(tmp_path), open_store(str(tmp_path)))
    assert list(read_counts(parts, open_store(str(tmp_path))).values()) == [1]


def test_a_text_column_can_be_left_out_and_is_remembered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (tmp_path / f"part-0000{number}-ab-c000.csv" for number in (0, 1))
    first.write_text("who,y,x\nann,1,2\nbob,3,4\n")
    with pytest.raises(BadValueError, match="--columns"):
        shard.run(ShardConfig(data=str(tmp_path)))
    shard.run(ShardConfig(data=str(tmp_path), label="y", columns="x"))
    assert table(tmp_path, "shards") == [["id", "count"], ["0", "2"]]
    assert table(tmp_path, "stats")[:3] == [["summary", "y", "x"], ["count", "2", "2"], ["mean", "2.0", "3.0"]]
    second.write_text("who,y,x\neve,5,6\n")
    capsys.readouterr()
    shard.run(ShardConfig(data=str(tmp_path)))  # as the last time
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["parts_read"], said["rows"], said["mean"]) == (1, 3, {"y": 3.0, "x": 4.0})
    shard.run(ShardConfig(data=str(tmp_path), label="x", columns="y"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["parts_read"] == 2


def test_parquet_parts(tmp_path: Path, run: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"fare": [1.0, 2.0, None], "hour": [4, 5, 6]}), tmp_path / "part-00000.parquet")
    pq.write_table(pa.table({"hour": [7], "fare": [3.0]}), tmp_path / "part-00001.parquet")
    (said,) = run(tmp_path, "drop,hour:raise")
    assert (said["rows"], said["dropped"], said["parts"]) == (4, 1, 2)
    assert (said["mean"], said["max"]) == ({"fare": 2.0, "hour": 16 / 3}, {"fare": 3.0, "hour": 7.0})
    (counts,) = (tmp_path / ".meta" / "shards").glob("part-*.csv")
    assert counts.read_text().splitlines() == ["id,count", "0,3", "1,1"]
