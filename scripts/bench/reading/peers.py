"""Jobs for the peers' environment, which has no cabrank: other ways to read the same parts in batches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reading.jobs import Job, Run, serve


def batches(matrices: Iterable[Any], size: int) -> Iterator[Any]:
    """[size, C] out of matrices [n, C] in a row; the last is shorter."""
    rest: list[Any] = []
    have = 0
    for matrix in matrices:
        while have + len(matrix) >= size:
            cut = size - have
            yield np.concatenate([*rest, matrix[:cut]]) if rest else matrix[:cut]
            matrix, rest, have = matrix[cut:], [], 0
        if len(matrix):
            rest.append(matrix)
            have += len(matrix)
    if rest:
        yield np.concatenate(rest)


def pooled(job: Job, decode: Callable[[Any], Any], items: Iterable[Any]) -> int:
    """Rows of all batches, whole parts decoded on the job's threads, in order."""
    with ThreadPoolExecutor(job.threads) as pool:
        return sum(len(batch) for batch in batches(pool.map(decode, items), job.batch))


def bare_polars(job: Job) -> Iterator[tuple[str, Run]]:
    """Its streaming engine on POLARS_MAX_THREADS threads: batches as frames; and each part whole, one by one."""
    import polars as pl

    options: dict[str, Any] = {}
    if job.remote:
        options["storage_options"] = {
            "aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "aws_region": os.environ["AWS_DEFAULT_REGION"],
            "aws_allow_http": "true",
        }
    names = pl.scan_csv(job.uris[0], **options).collect_schema().names()
    types = dict.fromkeys(names, pl.Float64())

    def stream() -> int:
        frames = pl.scan_csv(job.uris, schema=types, **options).collect_batches(chunk_size=job.batch)
        return sum(frame.height for frame in frames)

    yield "bare polars", stream
    yield "bare polars, part by part", lambda: sum(pl.read_csv(uri, schema=types, **options).height for uri in job.uris)


def with_pandas(job: Job) -> Iterator[tuple[str, Run]]:
    """Its C engine, a part a thread; s3fs brings the bytes from a store."""
    import pandas as pd

    def decode(uri: str) -> Any:
        return pd.read_csv(uri, dtype="float64").to_numpy()

    yield "pandas", partial(pooled, job, decode, job.uris)


def with_s3_connector(job: Job) -> Iterator[tuple[str, Run]]:
    """S3 Connector for PyTorch brings the bytes, pyarrow parses them, a part a thread."""
    import pyarrow as pa
    from pyarrow import csv
    from s3torchconnector import S3ClientConfig, S3MapDataset

    if not job.remote:
        return
    objects = S3MapDataset.from_objects(
        job.uris,
        region=os.environ["AWS_DEFAULT_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        s3client_config=S3ClientConfig(force_path_style=True),
    )

    def decode(index: int) -> Any:
        data = objects[index].read()
        names = data[: data.index(b"\n")].decode().split(",")
        table = csv.read_csv(
            pa.py_buffer(data),
            csv.ReadOptions(use_threads=False, block_size=len(data)),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64())),
        )
        return np.column_stack([column.to_numpy() for column in table.columns])

    yield "S3 Connector, pyarrow", partial(pooled, job, decode, range(len(job.names)))


def block(item: tuple[str, int, int]) -> Any:
    """One batch for LitData, out of a file of the whole matrix."""
    import torch

    path, start, stop = item
    return torch.from_numpy(np.load(path, mmap_mode="r")[start:stop].copy())


def with_litdata(job: Job) -> Iterator[tuple[str, Run]]:
    """Converted to blocks of one batch each, on the local disk; two epochs, the second one told."""
    import litdata
    import pandas as pd
    import torch

    if job.remote:
        return
    folder = Path(job.scratch) / f"litdata-{job.batch}"
    if not folder.exists():
        matrix = Path(job.scratch) / "matrix.npy"
        if not matrix.exists():
            np.save(matrix, np.concatenate([pd.read_csv(uri, dtype="float64").to_numpy() for uri in job.uris]))
        starts = range(0, job.rows, job.batch)
        items = [(str(matrix), start, min(start + job.batch, job.rows)) for start in starts]
        litdata.optimize(
            block, items, str(folder), chunk_bytes="64MB", num_workers=1, optimize_dns=False, verbose=False
        )
    made = litdata.StreamingDataset(str(folder), shuffle=False)
    sum(len(one) for one in made)
    yield "LitData, second epoch", lambda: sum(len(one) for one in made)
    room = torch.ones(min(job.batch, job.rows), made[0].shape[1], dtype=torch.float64)

    def copied() -> int:
        """By a consumer who looks at every value: blocks are mapped, and cost little until then."""
        return sum(len(room[: len(one)].copy_(one)) for one in made)

    yield "LitData, second epoch, copied", copied


def with_kaen(job: Job) -> Iterator[tuple[str, Run]]:
    """The original ObjectStorageDataset. Its cost is the same everywhere in the data, and high: as many batches as the
    first part has, at least one."""
    from kaen.torch import ObjectStorageDataset

    warnings.simplefilter("ignore")
    protocol = "" if job.remote else "file://"
    made = ObjectStorageDataset(
        f"{protocol}{job.folder}/part-*.csv",
        partitions_glob=f"{protocol}{os.environ['BENCH_COUNTS']}",
        batch_size=job.batch,
        stats_glob=False,
        storage_options={"anon": False} if job.remote else {"auto_mkdir": False},
        cache_dir=str(Path(job.scratch) / "kaen"),
    )
    count = max(1, job.rows // len(job.names) // job.batch)
    yield "kaen", lambda: sum(len(batch) for batch in islice(made, count))


READERS = {
    "bare polars": bare_polars,
    "pandas": with_pandas,
    "S3 Connector": with_s3_connector,
    "LitData": with_litdata,
    "kaen": with_kaen,
}

if __name__ == "__main__":
    serve(READERS)
