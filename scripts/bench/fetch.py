"""Times the ways to bring the same objects from the same S3 server into memory. By hand: python scripts/bench/fetch.py

Serves 12 objects of 10 MB from moto in a process of its own, and reads them with cabrank's Fetcher and, where this
Python can import it, with s3fs. `--reader PYTHON` names a Python that has s3fs, when this one has not. `--endpoint URL`
takes a running server instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

OBJECTS, SIZE = 12, 10_000_000
BUCKET = "bench-fetch"


def options(endpoint: str) -> dict[str, Any]:
    """For cabrank and for s3fs alike."""
    return {
        "endpoint_url": endpoint,
        "key": "k",
        "secret": "s",
        "client_kwargs": {"region_name": "us-east-1"},
    }


def with_cabrank(endpoint: str) -> Callable[[], int]:
    """Four threads on one Fetcher; pinned and checked."""
    from cabrank.data.fetch import Fetcher
    from cabrank.store import open_store

    store = open_store(f"s3://{BUCKET}", options(endpoint))
    fetcher = Fetcher(store)
    infos = list(store.list(f"s3://{BUCKET}/"))

    def run() -> int:
        with ThreadPoolExecutor(4) as pool:
            return sum(len(data) for data in pool.map(fetcher.fetch, infos))

    return run


def with_s3fs_cat(endpoint: str) -> Callable[[], int]:
    """s3fs's own concurrency: one event loop."""
    import s3fs

    fs = s3fs.S3FileSystem(**options(endpoint), skip_instance_cache=True, use_listings_cache=False)
    keys = fs.ls(BUCKET, detail=False)
    return lambda: sum(len(data) for data in fs.cat(keys).values())


def with_s3fs_open(endpoint: str) -> Callable[[], int]:
    """Four threads, each opens and reads, as dataset code does."""
    import s3fs

    fs = s3fs.S3FileSystem(**options(endpoint), skip_instance_cache=True, use_listings_cache=False)
    keys = fs.ls(BUCKET, detail=False)

    def read(key: str) -> int:
        with fs.open(key) as file:
            return len(file.read())

    def run() -> int:
        with ThreadPoolExecutor(4) as pool:
            return sum(pool.map(read, keys))

    return run


READERS = {"cabrank": with_cabrank, "s3fs-cat": with_s3fs_cat, "s3fs-open": with_s3fs_open}


def measure(name: str, endpoint: str, rounds: int) -> None:
    """Prints the median and best of some rounds, after one that warms up."""
    run = READERS[name](endpoint)
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        assert run() == OBJECTS * SIZE
        seconds.append(time.perf_counter() - began)
    middle, best = statistics.median(seconds[1:]), min(seconds[1:])
    print(f"{name:10} median {OBJECTS * SIZE / middle / 1e6:6.0f} MB/s   best {OBJECTS * SIZE / best / 1e6:6.0f} MB/s")


def fill(endpoint: str) -> None:
    """The objects, if they are not there yet."""
    from cabrank.store.s3 import S3Store

    store = S3Store(options(endpoint))
    store.make_bucket(BUCKET)
    for number in range(OBJECTS):
        store.put(f"s3://{BUCKET}/part-{number:05}", os.urandom(SIZE))


SERVE = """
from cabrank.local.store import EmbeddedStore
with EmbeddedStore() as store:
    print(store.endpoint_url, flush=True)
    input()
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint")
    parser.add_argument("--reader", default=sys.executable, help="a Python that has s3fs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=READERS)
    args = parser.parse_args()
    if args.only:
        measure(args.only, args.endpoint, args.rounds)
        return
    server = None
    if args.endpoint is None:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        args.endpoint = server.stdout.readline().strip()
    fill(args.endpoint)
    for name in READERS:
        python = sys.executable if name == "cabrank" else args.reader
        command = [python, __file__, "--only", name, "--endpoint", args.endpoint, "--rounds", str(args.rounds)]
        if subprocess.run(command, check=False).returncode:
            print(f"{name:10} not measured: see above")
    if server is not None:
        server.communicate("\n")


if __name__ == "__main__":
    main()
