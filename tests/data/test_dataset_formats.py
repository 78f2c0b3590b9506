"""The dataset over every format: the same table gives the same batches; labels, policies and dtypes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cabrank import ObjectStorageDataset
from cabrank.errors import BadValueError, ConfigError

ROWS = 1000
TEXT = "id,x,y\n" + "".join(f"{i},{i * 0.5},{-i}\n" for i in range(ROWS))


def _parquet(path: Path) -> None:
    ids = np.arange(ROWS)
    pq.write_table(pa.table({"id": ids, "x": ids * 0.5, "y": -ids}), path, row_group_size=300)


WRITE: dict[str, Callable[[Path], object]] = {
    ".csv": lambda path: path.write_text(TEXT),
    ".csv.gz": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
    ".csv.zst": lambda path: path.write_bytes(pa.Codec("zstd").compress(TEXT.encode(), asbytes=True)),
    ".parquet": _parquet,
    ".CSV.GZ": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
}


def rows_of(dataset: ObjectStorageDataset) -> list[list[float]]:
    return [row for batch in dataset if isinstance(batch, torch.Tensor) for row in batch.tolist()]


@pytest.mark.parametrize("ending", list(WRITE))
def test_the_same_batches_whatever_the_format(tmp_path: Path, ending: str) -> None:
    WRITE[ending](tmp_path / f"part-00000{ending}")
    dataset = ObjectStorageDataset(str(tmp_path), batch_size=64, label=-1, columns=["x"], tail="uneven", cache_dir=None)
    assert dataset.columns == ("y", "x")
    assert (dataset.rows, len(dataset)) == (ROWS, 16)
    assert rows_of(dataset) == [[-i, i * 0.5] for i in range(ROWS)]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_the_cache_keeps_what_was_read_and_what_was_left_out(tmp_path: Path, ending: str) -> None:
    WRITE[ending](tmp_path / f"part-00000{ending}")

    options = {"nulls": "drop,y:fill=0", "tail": "uneven", "cache_dir": str(tmp_path / "cache")}
    for _ in range(2):
        cached = ObjectStorageDataset(str(tmp_path), batch_size=128, **options)  # type: ignore[arg-type]
        for _ in range(2):
            assert rows_of(cached) == [[i, i * 0.5, -i] for i in range(ROWS)]


VALUES = [1.0, 1.00390625, 1.001953125, 0.1, -3.14159, 2.0**127, 1e-40, 3.3895e38, 16777217.0, 1.0 / 3]


def test_bfloat16_is_rounded_as_torch_rounds(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("a,b\n" + "".join(f"{value!r},{-value!r}\n" for value in VALUES))
    (batch,) = ObjectStorageDataset(str(tmp_path), batch_size=10, dtype=torch.bfloat16)
    assert isinstance(batch, torch.Tensor)
    assert batch.dtype == torch.bfloat16
    wanted = torch.tensor([[value, -value] for value in VALUES], dtype=torch.float64).to(torch.bfloat16)
    assert torch.equal(batch, wanted)


def test_bfloat16_weights_and_numbers_that_it_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "part-00000.csv").write_text("a,b\n1,2\n3.4e38,4\n5,6\n")
    pairs = ObjectStorageDataset(str(tmp_path), batch_size=3, dtype="bfloat16", nulls="drop", weights=True)
    ((batch, weights),) = list(pairs)
    assert (batch.tolist(), weights.tolist(), weights.dtype) == ([[1, 2], [5, 6]], [1, 1], torch.bfloat16)
    with pytest.raises(BadValueError, match=r"row 2: column 'a': '3\.4e38' is too large for bfloat16"):
        list(ObjectStorageDataset(str(tmp_path), batch_size=3, dtype="bfloat16"))
    assert len(next(iter(ObjectStorageDataset(str(tmp_path), batch_size=3, dtype="float32")))) == 3


@pytest.mark.parametrize(
    ("nulls", "words"),
    [("drop,tip:fill=0", "nulls names the column 'tip'; there are: a, b"), ("b:fill=1e39", "too large for the dtype")],
)
def test_a_policy_that_does_not_fit_is_refused_at_once(tmp_path: Path, nulls: str, words: str) -> None:
    (tmp_path / "part-00000.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=words):
        ObjectStorageDataset(str(tmp_path), batch_size=1, nulls=nulls, dtype="float32")
