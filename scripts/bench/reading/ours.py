"""Jobs for cabrank's environment: this dataset, and what it stands on: bare pyarrow, bare GETs, a bare copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv

from cabrank import ObjectStorageDataset
from reading.jobs import Job, Run, serve


def dataset(job: Job, cache_dir: Path | None = None) -> ObjectStorageDataset:
    """Made, and not yet read."""
    return ObjectStorageDataset(
        job.folder, batch_size=job.batch, threads=job.threads, tail="uneven", cache_dir=cache_dir
    )


def read(batches: Iterable[Any]) -> int:
    """Rows of all batches, each forgotten at once."""
    return sum(len(batch) for batch in batches)


def copied(batches: Iterable[Any], room: torch.Tensor) -> int:
    """The same by a consumer who looks at every value: it copies each batch into memory of its own."""
    rows = 0
    for batch in batches:
        room[: len(batch)].copy_(batch)
        rows += len(batch)
    return rows


def first(make: Callable[[], ObjectStorageDataset]) -> int:
    """Rows of the first batch."""
    batches = iter(make())
    return len(next(batches))


def without_cache(job: Job) -> Iterator[tuple[str, Run]]:
    """A first epoch that keeps nothing."""
    yield "cabrank", partial(read, dataset(job))


def with_cache(job: Job) -> Iterator[tuple[str, Run]]:
    """A first epoch that fills an empty cache, and two that read from it."""
    folder = Path(job.scratch) / "cache"
    shutil.rmtree(folder, ignore_errors=True)
    made = dataset(job, folder)
    yield "cabrank, filling its cache", partial(read, made)
    room = torch.ones(min(job.batch, job.rows), len(made.columns), dtype=torch.float64)
    yield "cabrank, from its cache", partial(read, made)
    yield "cabrank, from its cache, copied", partial(copied, made, room)
    shutil.rmtree(folder)


def first_batch(job: Job) -> Iterator[tuple[str, Run]]:
    """How long until training can begin."""
    made = dataset(job)
    yield "first batch", partial(first, lambda: made)
    yield "first batch, dataset made too", partial(first, partial(dataset, job))


@cache
def client() -> Any:
    """boto3's, on the store that the environment names."""
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(max_pool_connections=64, s3={"addressing_style": "path"}))


def get(uri: str) -> bytes:
    """One part's bytes."""
    if not uri.startswith("s3://"):
        return Path(uri).read_bytes()
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    body: bytes = client().get_object(Bucket=bucket, Key=key)["Body"].read()
    return body


def parse(data: bytes) -> int:
    """The dataset's own engine, whole parts, types and columns given; the table is thrown away."""
    names = data[: data.index(b"\n")].decode().split(",")
    table = csv.read_csv(
        pa.py_buffer(data),
        csv.ReadOptions(use_threads=False, block_size=len(data)),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64())),
    )
    return int(table.num_rows)


def pooled(job: Job, one: Callable[[Any], int], items: Iterable[Any]) -> int:
    """The sum over all items, on the job's threads."""
    with ThreadPoolExecutor(job.threads) as pool:
        return sum(pool.map(one, items))


def bare_pyarrow(job: Job) -> Iterator[tuple[str, Run]]:
    """Each thread gets a part and parses it; and the parse alone, of bytes in memory."""
    yield "bare pyarrow", lambda: pooled(job, lambda uri: parse(get(uri)), job.uris)
    resident = [get(uri) for uri in job.uris]
    yield "bare pyarrow, parse alone", lambda: pooled(job, parse, resident)


def bare_gets(job: Job) -> Iterator[tuple[str, Run]]:
    """Bytes only, as rows of those parts."""

    def gets() -> int:
        got = pooled(job, lambda uri: len(get(uri)), job.uris)
        return job.rows if got else 0

    yield "bare GETs", gets


def memory_copy(job: Job) -> Iterator[tuple[str, Run]]:
    """Of the decoded matrix, batch by batch into one buffer."""
    columns = get(job.uris[0]).split(b"\n", 1)[0].count(b",") + 1
    matrix = np.ones((job.rows, columns))  # not zeros: those are one page of memory, mapped over and over
    batches = [torch.from_numpy(matrix[start : start + job.batch]) for start in range(0, job.rows, job.batch)]
    room = torch.ones(min(job.batch, job.rows), columns, dtype=torch.float64)
    yield "memory copy", lambda: copied(batches, room)


READERS = {
    "cabrank": without_cache,
    "cabrank cache": with_cache,
    "first batch": first_batch,
    "bare pyarrow": bare_pyarrow,
    "bare GETs": bare_gets,
    "memory copy": memory_copy,
}

if __name__ == "__main__":
    serve(READERS)
