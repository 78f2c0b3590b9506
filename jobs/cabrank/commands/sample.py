"""Job 0: makes taxi-like trips to try everything else on."""

from __future__ import annotations

import time
from pathlib import Path

from cabrank.commands.terminal import progress, show
from cabrank.config import SampleConfig
from cabrank.data.sample import write_sample
from cabrank.store import open_store


def run(config: SampleConfig) -> None:
    """Writes the parts under `config.dest` and prints how many rows and bytes, and how fast."""
    folder = folder_uri(config.dest)
    store = open_store(folder, config.storage_options())
    began, size = time.perf_counter(), 0
    with progress("sample", rows=config.rows) as advance:
        for count, length in write_sample(store, folder, config.rows, config.parts, config.seed):
            size += length
            advance(count, 0)
    _show(config, folder, size, time.perf_counter() - began)


def folder_uri(dest: str) -> str:
    """`dest` as a URI that ends in "/": a plain path becomes file:///abs/path/."""
    uri = dest if "://" in dest else f"file://{Path(dest).expanduser().absolute()}"
    return uri if uri.endswith("/") else uri + "/"


def _show(config: SampleConfig, folder: str, size: int, seconds: float) -> None:
    from rich.table import Table

    record = {
        "event": "sample",
        "folder": folder,
        "rows": config.rows,
        "parts": config.parts,
        "bytes": size,
        "seed": config.seed,
        "rows_per_second": round(config.rows / seconds),
    }
    table = Table(title="sample", show_header=False)
    for key, value in record.items():
        if key != "event":
            table.add_row(
                key.replace("_", " "), f"{value:,}" if isinstance(value, int) and key != "seed" else str(value)
            )
    show(record, table)
