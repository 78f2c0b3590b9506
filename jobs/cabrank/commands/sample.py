"""Job 0: makes taxi-like trips to try everything else on."""

from __future__ import annotations

import sys
import time

from cabrank.config import SampleConfig
from cabrank.console import json_line, say, table, track
from cabrank.data.sample import write_sample
from cabrank.store import canonical, open_store


def run(config: SampleConfig) -> None:
    """Writes the parts under `config.dest` and prints how many rows and bytes, and how fast."""
    folder = canonical(config.dest).removesuffix("/") + "/"
    store = open_store(folder, config.storage_options(), writable=True)
    began, size = time.perf_counter(), 0
    with track("sample", config.rows) as advance:
        for rows, length in write_sample(store, folder, config.rows, config.parts, config.seed):
            size += length
            advance(rows)
    seconds = time.perf_counter() - began
    facts = {"folder": folder, "rows": config.rows, "parts": config.parts, "bytes": size, "seed": config.seed}
    facts["rows_per_second"] = round(config.rows / seconds)
    if sys.stdout.isatty():
        table("sample", ("", ""), [(name.replace("_", " "), str(value)) for name, value in facts.items()])
    else:
        say(json_line({"event": "sample", **facts}))
