"""The dataset on rows that carry their own number: who reads what, in which batch, from files as people have them."""

from __future__ import annotations

import gzip
import logging
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cabrank import ObjectStorageDataset
from cabrank.data import csv_text
from cabrank.data import dataset as module
from cabrank.errors import (
    BadValueError,
    ChangedError,
    ConfigError,
    MetadataError,
    NoDataError,
    SchemaError,
)

COUNTS = [5, 0, 1, 17, 40]
TOTAL = sum(COUNTS)


def write(folder: Path, counts: Sequence[int] = COUNTS, meta: bool = True) -> str:
    """Parts whose rows are (number, 2·number + 1), numbered through all parts."""
    row = 0
    for number, count in enumerate(counts):
        lines = ["y,x", *(f"{row + i},{2 * (row + i) + 1}" for i in range(count))]
        (folder / f"part-{number:05d}-a-c000.csv").write_text("\n".join(lines) + "\n")
        row += count
    if meta:
        table = "".join(f"{number},{count}\n" for number, count in enumerate(counts) if count)
        write_meta(folder, "id,count\n" + table)
    return str(folder)


def write_meta(folder: Path, text: str, name: str = "part-00000-spark-c000.csv") -> None:
    (folder / ".meta/shards").mkdir(parents=True, exist_ok=True)
    (folder / ".meta/shards" / name).write_text(text)


def batches(dataset: ObjectStorageDataset, worker: int = 0, workers: int = 1) -> Iterator[torch.Tensor]:
    """What worker `worker` of `workers` yields, without starting processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "get_worker_info", lambda: SimpleNamespace(id=worker, num_workers=workers))
        yield from cast("Iterator[torch.Tensor]", iter(dataset))


def numbers(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [int(value) for tensor in tensors for value in tensor[:, 0]]


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("counts", [COUNTS, [64], [1] * 9, [3, 0, 2]])
@pytest.mark.parametrize("meta", [True, False])
def test_each_row_once_and_equal_steps(tmp_path: Path, counts: list[int], tail: Any, meta: bool) -> None:
    folder = write(tmp_path, counts, meta)
    total = sum(counts)
    for world, workers, size in product((1, 2, 3, 7), (1, 3), (1, 4, 10, 1000)):
        if tail == "drop" and total < world * size:
            continue
        seen: Counter[int] = Counter()
        steps = []
        for rank in range(world):
            ds = ObjectStorageDataset(
                folder, batch_size=size, worker=rank, replicas=world, tail=tail, weights=True, threads=1
            )
            pairs = [pair for worker in range(workers) for pair in batches(ds, worker, workers)]
            assert len(pairs) == len(ds)
            steps.append(len(pairs))
            for values, weights in pairs:
                assert values.shape == (len(weights), 2)
                assert values.dtype == weights.dtype == torch.float64
                assert torch.equal(values[:, 1], 2 * values[:, 0] + 1)
                seen.update(int(v) for v, w in zip(values[:, 0], weights, strict=True) if w == 1)
        assert max(seen.values()) == 1
        if tail == "drop":
            assert total - len(seen) < world * size
        else:
            assert sorted(seen) == list(range(total))
        if tail != "uneven":
            assert len(set(steps)) == 1


def test_repeated_rows_are_the_lanes_last_and_weigh_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, [4, 6])
    got = []
    for rank in range(3):
        ds = ObjectStorageDataset(folder, batch_size=2, worker=rank, replicas=3, weights=True)
        got.append([(v[:, 0].int().tolist(), w.int().tolist()) for v, w in ds])
    assert got == [
        [([0, 1], [1, 1]), ([2, 2], [1, 0])],
        [([3, 4], [1, 1]), ([5, 5], [1, 0])],
        [([6, 7], [1, 1]), ([8, 9], [1, 1])],
    ]


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    folder = write(tmp_path, [2])
    got = []
    for rank in range(5):
        ds = ObjectStorageDataset(folder, batch_size=3, worker=rank, replicas=5, weights=True)
        [(values, weights)] = list(ds)
        assert values.shape == (1, 2)
        got += [int(v) for v, w in zip(values[:, 0], weights, strict=True) if w]
    assert sorted(got) == [0, 1]


@pytest.mark.parametrize("block_bytes", [20, 100, 1 << 22])
def test_batches_over_many_blocks_and_parts(tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (block_bytes,))
    ds = ObjectStorageDataset(write(tmp_path, [100, 3, 200]), batch_size=32, tail="uneven")
    got = list(batches(ds))
    assert numbers(got) == list(range(303))
    assert [len(b) for b in got] == [32] * 9 + [15]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on a machine of one core
def test_the_loader_with_real_workers(tmp_path: Path) -> None:
    folder = write(tmp_path)
    alone = numbers(list(ObjectStorageDataset(folder, batch_size=4)))  # type: ignore[arg-type]
    for context in ("fork", "spawn"):
        ds = ObjectStorageDataset(folder, batch_size=4)
        loader = DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context=context)
        got = list(loader)
        assert sorted(numbers(got)) == sorted(alone)
        assert len(got) == len(loader) == len(ds) == -(-TOTAL // 4)


def test_code_for_the_original_class_runs_with_cycle(tmp_path: Path) -> None:
    folder = write(tmp_path)
    ds = ObjectStorageDataset(
        f"file://{folder}/part*.csv",
        partitions_glob=f"file://{folder}/.meta/shards/*.csv",
        storage_options={"anon": False},
        batch_size=50,
        shard_size=40,
        worker=0,
        replicas=1,
        cache_dir=str(tmp_path / "cache"),
        cycle=True,
    )
    shapes, seen = [], []
    for number, batch in enumerate(DataLoader(ds, pin_memory=torch.cuda.is_available())):
        shapes.append(tuple(batch.shape))
        batch.squeeze_()
        seen += [int(v) for v in batch[:, 0]]
        if number == 4:
            break
    assert shapes == [(1, 40, 2)] * 5
    assert seen == [i % TOTAL for i in range(200)]
    with pytest.raises(TypeError, match="cycle=True has no length"):
        len(ds)


@pytest.mark.parametrize(("world", "workers"), [(1, 1), (3, 1), (2, 2), (2, 3)])
def test_cycle_uses_every_row_equally_on_every_rank_and_worker(tmp_path: Path, world: int, workers: int) -> None:
    folder = write(tmp_path, [7, 5])
    uses: Counter[int] = Counter()
    for rank, worker in product(range(world), range(workers)):
        ds = ObjectStorageDataset(folder, batch_size=4, worker=rank, replicas=world, cycle=True)
        stream = batches(ds, worker, workers)
        uses.update(numbers([next(stream) for _ in range(6)]))
        stream.close()  # type: ignore[attr-defined]
    # 24 rows from each of these equal shares of the 12 rows
    assert uses == dict.fromkeys(range(12), 24 * world * workers // 12)


def test_a_seed_shuffles_the_parts_and_an_epoch_reshuffles(tmp_path: Path) -> None:
    folder = write(tmp_path, [2] * 20)

    def order(seed: int | None, epoch: int = 0) -> list[int]:
        ds = ObjectStorageDataset(folder, batch_size=7, seed=seed)
        ds.set_epoch(epoch)
        return numbers(list(batches(ds)))

    assert order(None) == order(None, 3) == list(range(40))
    assert sorted(order(5)) == list(range(40))
    assert order(5) == order(5) != order(5, 1)


def test_a_batch_inside_a_block_is_not_copied_and_may_be_changed(tmp_path: Path) -> None:
    ds = ObjectStorageDataset(write(tmp_path, [100]), batch_size=10)
    got = []
    for batch in batches(ds):
        batch *= -1
        got.append(batch)
    assert got[0].data_ptr() + 10 * 2 * 8 == got[1].data_ptr()
    assert numbers(got) == [-i for i in range(100)]


def test_kept_batches_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (20,))
    ds = ObjectStorageDataset(write(tmp_path, [500]), batch_size=50)
    assert numbers(list(batches(ds))) == list(range(500))
    views = [batch[5:7] for batch in batches(ds)]
    assert numbers(views) == [50 * i + j for i in range(10) for j in (5, 6)]


@pytest.mark.parametrize("dtype", ["float32", torch.float32, np.float32, np.dtype("float32")])
def test_dtypes(tmp_path: Path, dtype: Any) -> None:
    ds = ObjectStorageDataset(Path(write(tmp_path)), batch_size=np.int64(8), dtype=dtype)  # type: ignore[arg-type]
    assert {batch.dtype for batch in batches(ds)} == {torch.float32}


def test_arguments_are_checked_before_anything_is_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path, meta=False)
    for options in ({"batch_size": 0}, {"worker": 2, "replicas": 2}, {"tail": "x"}, {"cache_dir": "s3://b/x"}):
        with caplog.at_level(logging.INFO, "cabrank"), pytest.raises(ConfigError):
            ObjectStorageDataset(folder, **options)
    assert caplog.text == ""


def test_label_and_columns(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    ds = ObjectStorageDataset(str(tmp_path), batch_size=2, label="c", columns=["a"])
    assert ds.columns == ("c", "a")
    assert next(batches(ds)).tolist() == [[3.0, 1.0], [6.0, 4.0]]
    assert ds.rows == 2


def test_nulls_drop_makes_their_batch_smaller_and_is_counted(tmp_path: Path) -> None:
    folder = write(tmp_path, [10, 10])
    (tmp_path / "part-00001-a-c000.csv").write_text(
        "y,x\n" + "".join(f"{i},{'' if i in (11, 12, 19) else 2 * i + 1}\n" for i in range(10, 20))
    )
    with pytest.raises(BadValueError, match=r"part-00001-a-c000\.csv: row 2: column 'x': the field is empty"):
        list(ObjectStorageDataset(folder, batch_size=4))
    ds = ObjectStorageDataset(folder, batch_size=4, nulls="drop")
    got = [batch[:, 0].int().tolist() for batch in batches(ds)]
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [13, 14, 15], [16, 17, 18]]
    assert (ds.dropped, len(ds)) == (3, 5)
    filled = ObjectStorageDataset(folder, batch_size=20, nulls="fill=-7")
    assert next(batches(filled))[11].tolist() == [11.0, -7.0]


def test_a_dropped_last_row_is_not_repeated_either(tmp_path: Path) -> None:
    folder = write(tmp_path, [3])
    (tmp_path / "part-00000-a-c000.csv").write_text("y,x\n0,1\n1,\n2,5\n")
    got = []
    for rank in range(2):
        ds = ObjectStorageDataset(folder, batch_size=2, worker=rank, replicas=2, nulls="drop", weights=True)
        got.append([(v[:, 0].int().tolist(), w.int().tolist()) for v, w in ds])
    assert got == [[([0, 0], [1, 0])], [([2], [1])]]


def test_real_files_variety(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_bytes(b"\xef\xbb\xbfy,x\r\n0,1\r\n1,3\r\n\r\n")
    (tmp_path / "part-00001.csv").write_bytes(b'x,"y"\n5,2\n" 7", 3')
    (tmp_path / "part-00002.csv.gz").write_bytes(gzip.compress(b"y,x\n4,9\n"))
    (tmp_path / "part-00003.csv").write_bytes(b"y,x\n")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-00000.csv.crc").write_bytes(b"\1\2")
    (tmp_path / "part-00004.csv").touch()
    ds = ObjectStorageDataset(str(tmp_path), batch_size=3)
    assert numbers(list(batches(ds))) == [0, 1, 2, 3, 4]
    assert [part.number for part in ds.parts] == [0, 1, 2, 3]


def test_counting_is_said_once_and_metadata_makes_it_needless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cabrank"):
        ObjectStorageDataset(write(tmp_path, COUNTS, meta=False), batch_size=3)
    assert [r.message for r in caplog.records if "counting the rows of 5 of 5 parts" in r.message] != []
    caplog.clear()
    folder = write(tmp_path, COUNTS)
    with caplog.at_level(logging.WARNING, "cabrank"):
        ObjectStorageDataset(folder, batch_size=3)
    assert "5 of 5" not in caplog.text


def test_a_part_without_an_entry_is_counted_and_not_lost(tmp_path: Path) -> None:
    folder = write(tmp_path, [4, 4, 4])
    write_meta(tmp_path, "id,count\n0,4\n2,4\n")
    assert numbers(list(batches(ObjectStorageDataset(folder, batch_size=5)))) == list(range(12))
    write_meta(tmp_path, "id,count\n0,4\n1,0\n2,4\n")
    assert ObjectStorageDataset(folder, batch_size=5).rows == 12


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("0,4\n1,5\n2,4\n", r"part-00001-a-c000\.csv: holds 4 rows, and its metadata says 5"),
        ("0,4\n1,3\n2,4\n", r"part-00001-a-c000\.csv: holds (at least )?4 rows, and its metadata says 3"),
        ("0,4\n1,4\n2,4\n9,1\n", "id 9"),
        ("0,4\n1,4\n1,5\n2,4\n", "line 4: id 1 has 5 rows, but 4 in .*: line 3"),
        ("0,4\n1,four\n", "'1,four'"),
    ],
)
def test_wrong_metadata(tmp_path: Path, table: str, words: str) -> None:
    folder = write(tmp_path, [4, 4, 4])
    write_meta(tmp_path, "id,count\n" + table)
    with pytest.raises(MetadataError, match=words) as caught:
        list(ObjectStorageDataset(folder, batch_size=5))
    assert caught.value.exit_code == 3
    assert "cabrank shard" in str(caught.value)


def test_an_empty_object_that_should_have_rows(tmp_path: Path) -> None:
    folder = write(tmp_path, [4, 4])
    (tmp_path / "part-00001-a-c000.csv").write_text("")
    with pytest.raises(MetadataError, match=r"part-00001-a-c000\.csv"):
        ObjectStorageDataset(folder, batch_size=5)


def test_a_part_replaced_between_planning_and_reading(tmp_path: Path) -> None:
    ds = ObjectStorageDataset(write(tmp_path, [4, 4]), batch_size=2)
    part = tmp_path / "part-00001-a-c000.csv"
    text = part.read_text()
    part.write_text(text.replace("5", "6"))  # as long as before
    os.utime(part, ns=(1, 1))
    with pytest.raises(ChangedError, match=r"part-00001-a-c000\.csv"):
        list(ds)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"batch_size": 2.5}, r"batch_size is 2\.5"),
        ({"shard_size": 0}, "shard_size is 0"),
        ({"worker": 3, "replicas": 3}, "worker is 3: of 3 replicas it must be 0 to 2"),
        ({"worker": -1, "replicas": 3}, "worker is -1: it must be a whole number, 0 or more"),
        ({"worker": "1", "replicas": 3}, "worker is '1'"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"seed": 1.5}, r"seed is 1\.5"),
        ({"threads": 0}, "threads is 0"),
        ({"shuffle_window": -2, "seed": 1}, "shuffle_window is -2"),
        ({"cache_dir": "c", "cache_bytes": "5"}, "cache_bytes is '5'"),
        ({"replicas": 0}, "replicas is 0"),
        ({"tail": "cut"}, "tail is 'cut'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"nulls": "skip"}, "nulls is 'skip'"),
        ({"label": "z"}, "no column 'z'"),
        ({"batch_size": 1000, "tail": "drop"}, "batch_size is 1000 on 1 ranks, which is larger than the data"),
        ({"cycle": True, "tail": "pad"}, "tail is 'pad': under cycle=True"),
        ({"storage_options": {"colour": "red"}}, "colour"),
    ],
)
def test_arguments_that_cannot_work(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    folder = write(tmp_path)
    with pytest.raises(ConfigError, match=words) as caught:
        len(ObjectStorageDataset(folder, **options))
    assert caught.value.exit_code == 2


def test_a_batch_larger_than_the_data_is_the_data(tmp_path: Path) -> None:
    ds = ObjectStorageDataset(write(tmp_path), batch_size=1000)
    assert [len(batch) for batch in batches(ds)] == [TOTAL]


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("y,x\n")
    with pytest.raises(NoDataError, match=r"part-00000\.csv: a header and no rows, as in all 1 parts"):
        ObjectStorageDataset(str(tmp_path))
    with pytest.raises(NoDataError, match="matches no part file"):
        ObjectStorageDataset(str(tmp_path / "nothing"))


def test_the_first_part_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("1,2\n3,4\n")
    with pytest.raises(SchemaError, match=r"part-00000\.csv: the first row is '1,2' and not a header"):
        ObjectStorageDataset(str(tmp_path))


def test_it_travels_to_other_processes(tmp_path: Path) -> None:
    ds = pickle.loads(pickle.dumps(ObjectStorageDataset(write(tmp_path), batch_size=9)))
    assert numbers(list(ds)) == list(range(TOTAL))


def test_numbers_arrive_exactly(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(500, 3)) * [1e-300, 1.0, 1e300]
    lines = [",".join(map(repr, map(float, row))) for row in values]
    (tmp_path / "part-00000.csv").write_text("a,b,c\n" + "\n".join(lines))
    got = torch.cat(list(batches(ObjectStorageDataset(str(tmp_path), batch_size=64))))
    assert np.array_equal(got.numpy(), values)


def read_all(ds: ObjectStorageDataset) -> list[list[float]]:
    return [row for batch in batches(ds) for row in batch.tolist()]


@pytest.mark.parametrize("nulls", ["drop", "fill=9"])
def test_the_second_epoch_comes_from_the_cache(tmp_path: Path, nulls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (30,))
    folder = write(tmp_path, [50, 0, 30])
    text = (tmp_path / "part-00002-a-c000.csv").read_text()
    (tmp_path / "part-00002-a-c000.csv").write_text(text.replace("61,123", "61,").replace("79,159", "79,inf"))
    plain = read_all(ObjectStorageDataset(folder, batch_size=7, nulls=nulls))
    assert len(plain) == (78 if nulls == "drop" else 80)
    options: dict[str, Any] = {"batch_size": 7, "nulls": nulls, "cache_dir": str(tmp_path / "cache")}
    ds = ObjectStorageDataset(folder, **options)
    assert read_all(ds) == plain
    other = ObjectStorageDataset(folder, **options)  # knows the same parts
    for part in tmp_path.glob("part-*.csv"):
        part.unlink()  # whatever is read now is read from the cache
    assert read_all(ds) == plain
    assert read_all(other) == plain
    assert other.dropped == (2 if nulls == "drop" else 0)


def test_changed_batches_do_not_reach_the_cache(tmp_path: Path) -> None:
    folder = write(tmp_path, [50, 30])
    ds = ObjectStorageDataset(folder, batch_size=20, cache_dir=str(tmp_path / "cache"))
    for _ in range(3):
        seen = []
        for batch in batches(ds):
            seen += batch[:, 0].int().tolist()
            batch.fill_(-1)
        assert seen == list(range(80))


def test_ranks_that_share_a_part_find_all_of_it_in_the_cache(tmp_path: Path) -> None:
    folder = write(tmp_path, [90])
    ranks = [
        ObjectStorageDataset(folder, batch_size=8, worker=r, replicas=3, cache_dir=str(tmp_path / "cache"))
        for r in range(3)
    ]
    assert numbers(list(batches(ranks[1]))) == list(range(30, 60))
    (tmp_path / "part-00000-a-c000.csv").unlink()
    assert numbers(list(batches(ranks[0]))) == list(range(30))
    assert numbers(list(batches(ranks[2]))) == list(range(60, 90))


def test_an_iteration_given_up_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text.cut_block, "__defaults__", (30,))
    folder = write(tmp_path, [500, 500])
    ds = ObjectStorageDataset(folder, batch_size=8, cache_dir=str(tmp_path / "cache"))
    stream = batches(ds)
    assert next(stream)[:, 0].tolist() == list(range(8))
    stream.close()  # type: ignore[attr-defined]
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left <= {".cabrank-cache", "room.cabrank-lock"}
    assert numbers(list(batches(ds))) == list(range(1000))


def test_a_fault_is_no_entry(tmp_path: Path) -> None:
    folder = write(tmp_path, [5, 5])
    (tmp_path / "part-00001-a-c000.csv").write_text("y,x\n5,11\n6,word\n7,1\n8,1\n9,1\n")
    ds = ObjectStorageDataset(folder, batch_size=5, cache_dir=str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(BadValueError, match="row 2: column 'x': 'word' is no number"):
            list(batches(ds))
