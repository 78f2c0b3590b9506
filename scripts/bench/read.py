"""Rows a second of ObjectStorageDataset at several batch sizes, beside a bare loop that parses the same parts.

    python scripts/bench/read.py [--rows 2000000] [--parts 12] [--threads N] [--rounds 5]

The bare loop reads each part's file and parses it whole with the dataset's engine (pyarrow), types and columns given,
on the same number of threads, and throws the result away. All runs are interleaved; the figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from cabrank import ObjectStorageDataset
from cabrank.commands import sample, shard
from cabrank.config import SampleConfig, ShardConfig
from cabrank.data.reading import cores

BATCH_SIZES = (2**12, 2**16, 2**20)


def bare(paths: list[Path], threads: int) -> int:
    """Rows of all parts, parsed and forgotten."""

    def parse(path: Path) -> int:
        data = path.read_bytes()
        names = data[: data.index(b"\n")].decode().split(",")
        table = csv.read_csv(
            pa.py_buffer(data),
            csv.ReadOptions(use_threads=False, block_size=len(data)),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64())),
        )
        return int(table.num_rows)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(parse, paths))


def dataset(folder: str, batch_size: int, threads: int) -> Callable[[], int]:
    """Reads one epoch; the plan is made beforehand, as in training."""
    made = ObjectStorageDataset(folder, batch_size=batch_size, threads=threads, tail="uneven")
    return lambda: sum(len(batch) for batch in made)


def measure(runs: dict[str, Callable[[], int]], rows: int, rounds: int) -> dict[str, float]:
    """Million rows a second of each, the median of `rounds` interleaved runs after one that warms the caches."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            if (got := run()) != rows:
                raise SystemExit(f"{name} read {got} rows, not {rows}")
            seconds[name].append(time.perf_counter() - start)
    return {name: rows / statistics.median(times[1:]) / 1e6 for name, times in seconds.items()}


def main() -> None:
    """Makes the parts, runs everything in turn, prints the medians and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--parts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sample.run(SampleConfig.of({"dest": folder, "rows": args.rows, "parts": args.parts}))
        shard.run(ShardConfig.of({"data": folder}))
        paths = sorted(Path(folder).glob("part-*.csv"))
        runs: dict[str, Callable[[], int]] = {"bare pyarrow": lambda: bare(paths, args.threads)}
        runs |= {f"batch 2^{size.bit_length() - 1}": dataset(folder, size, args.threads) for size in BATCH_SIZES}
        rates = measure(runs, args.rows, args.rounds)
    print(f"{args.rows} rows, {args.parts} parts, {args.threads} threads, medians of {args.rounds} interleaved rounds")
    for name, rate in rates.items():
        print(f"{name:14s} {rate:6.2f} M rows/s   {rate / rates['bare pyarrow']:5.2f} of the bare loop")
    sizes = [rate for name, rate in rates.items() if name.startswith("batch")]
    print(f"fastest / slowest batch size: {max(sizes) / min(sizes):.2f}")


if __name__ == "__main__":
    main()
